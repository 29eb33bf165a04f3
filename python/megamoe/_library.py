"""Finds libmegamoe, gives its functions their types, and turns codes into exceptions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megamoe import _errors, _structs


def _load() -> ctypes.CDLL:
    # MEGAMOE_LIBRARY serves those who work on the library; an installed package has its own beside it.
    path = os.environ.get("MEGAMOE_LIBRARY") or str(Path(__file__).with_name("libmegamoe.so"))
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"megamoe: the library must be loadable from {path}, and it is not ({error}); build it by `pip install .`, "
            "or set MEGAMOE_LIBRARY to another libmegamoe.so"
        ) from error
    for name, (result, arguments) in _structs.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib = _load()
__version__: str = lib.megamoe_version().decode()


def check(code: int, layer: ctypes.c_void_p | None = None) -> None:
    """Raises what a call returned. Must run on the thread that made the call."""
    if code == 0:
        return
    sentence = lib.megamoe_layer_error(layer) if layer else lib.megamoe_last_error()
    raise _errors.error_of(code, sentence.decode(errors="replace"))


def nanoseconds(seconds: float | None, what: str) -> int:
    """A timeout for the C interface; None: its default."""
    if seconds is None:
        return 0
    if not 0 < seconds < 1e9:
        raise _errors.InvalidArgumentError(
            f"{what}: timeout must be a number of seconds between 0 and 1e9, got {seconds}; None takes the default"
        )
    return max(1, round(seconds * 1e9))


_log_callback: Any = None  # the library keeps the pointer


def set_log_callback(callback: Callable[[str, str], None] | None) -> None:
    """Sends the library's messages to `callback(level, message)`, level "info" or "warning"; None ends that.

    It is called from any thread and must not call megamoe.
    """
    global _log_callback
    if callback is None:
        made: Any = _structs.LOG_CALLBACK(0)
    else:
        made = _structs.LOG_CALLBACK(
            lambda level, message, _: callback("warning" if level else "info", message.decode(errors="replace"))
        )
    lib.megamoe_set_log_callback(made, None)
    _log_callback = made
