"""What the library's codes become: a MegamoeError that is also the fitting builtin, with its sentence."""

from __future__ import annotations


class MegamoeError(Exception):
    """Base of everything that megamoe raises; `code` is the library's name for it, such as "invalid_argument"."""

    code: str = "internal"


class InvalidArgumentError(MegamoeError, ValueError):
    """A value, shape, dtype or layout is wrong; nothing was started."""

    code = "invalid_argument"


class NotSupportedError(MegamoeError, NotImplementedError):
    """Well formed, but this build or backend cannot do it."""

    code = "not_supported"


class BadFileError(MegamoeError, ValueError):
    """A file is missing, truncated, malformed or contradicts another."""

    code = "bad_file"


class MissingFileError(BadFileError, FileNotFoundError):
    """A folder that is no checkpoint: it, its config.json or its safetensors files are not there."""


class OutOfMemoryError(MegamoeError, MemoryError):
    """Host or GPU memory is exhausted."""

    code = "out_of_memory"


class RankTimeoutError(MegamoeError, TimeoutError):
    """A rank did not come in time; the sentence names rank, role, signal and the missing ranks."""

    code = "timeout"


class PeerFailedError(MegamoeError, ConnectionError):
    """Another rank refused the call, failed or died."""

    code = "peer_failed"


class PoisonedError(MegamoeError, RuntimeError):
    """An earlier call was cut short: call reset() on every rank."""

    code = "poisoned"


class InternalError(MegamoeError, RuntimeError):
    """Something that must not happen."""

    code = "internal"


BY_CODE: dict[int, type[MegamoeError]] = {
    1: InvalidArgumentError,
    2: NotSupportedError,
    3: BadFileError,
    4: OutOfMemoryError,
    5: RankTimeoutError,
    6: PeerFailedError,
    7: PoisonedError,
    8: InternalError,
}


def error_of(code: int, sentence: str) -> MegamoeError:
    """The exception for a code of the C interface that is not 0."""
    return BY_CODE.get(code, InternalError)(sentence)
