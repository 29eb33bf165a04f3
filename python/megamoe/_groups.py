"""Groups of ranks: threads of this process, or processes of this host; and a helper that runs a function per rank."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from megamoe import _structs
from megamoe._errors import InvalidArgumentError, MegamoeError
from megamoe._library import check, lib, nanoseconds

Result = TypeVar("Result")


class Group:
    """One rank's membership in a group; made by `thread_group`, `process_group` and their like.

    A membership serves one layer at a time. It ends with `close()`, or when it and its layers are garbage.
    """

    def __init__(self, handle: int) -> None:
        self._handle = ctypes.c_void_p(handle)

    @property
    def handle(self) -> ctypes.c_void_p:
        """For the C interface."""
        if not self._handle:
            raise InvalidArgumentError("megamoe.Group: the group must be open, and it was closed")
        return self._handle

    @property
    def rank(self) -> int:
        """This rank, 0 to num_ranks - 1."""
        return int(lib.megamoe_group_rank(self.handle))

    @property
    def num_ranks(self) -> int:
        """How many ranks the group has."""
        return int(lib.megamoe_group_num_ranks(self.handle))

    def close(self) -> None:
        """Ends the membership, once its layers are closed too."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            lib.megamoe_group_destroy(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<megamoe.Group rank {self.rank} of {self.num_ranks}>" if self._handle else "<megamoe.Group closed>"


def _uint32(value: int, what: str) -> int:
    if not 0 <= value < 2**32:
        raise InvalidArgumentError(f"{what} must be between 0 and 4294967295, got {value}")
    return value


def thread_group(num_ranks: int) -> list[Group]:
    """A group whose ranks are threads of this process; element r is for rank r's thread. CPU backend.

    `num_ranks`: 1 to 72. Calls of a layer are collective: see `run_ranks` for one thread per rank.
    """
    handles = (ctypes.c_void_p * max(1, min(_uint32(num_ranks, "megamoe.thread_group: num_ranks"), 4096)))()
    check(lib.megamoe_thread_group_create(num_ranks, handles))
    return [Group(handle) for handle in handles if handle]


def cuda_thread_group(devices: Sequence[int]) -> list[Group]:
    """A group whose ranks are threads of this process, with memory on GPUs: rank r on GPU devices[r]. CUDA backend.

    `devices`: one index for each rank, as CUDA counts GPUs in this process; ranks may share a GPU.
    Raises NotImplementedError in a build without CUDA, without a driver or GPU, or where a GPU cannot reach another.
    """
    indices = [int(device) for device in devices]
    if any(not 0 <= index < 2**31 for index in indices):
        raise InvalidArgumentError(f"megamoe.cuda_thread_group: devices must be indices of GPUs, got {indices}")
    numbers = (ctypes.c_int32 * max(1, len(indices)))(*indices)
    handles = (ctypes.c_void_p * max(1, len(indices)))()
    check(lib.megamoe_cuda_thread_group_create(len(indices), numbers, handles))
    return [Group(handle) for handle in handles if handle]


def _process_options(
    rank: int | None, num_ranks: int | None, name: str | None, rendezvous_dir: str | None, timeout: float | None
) -> _structs.ProcessOptions:
    if (rank is None) != (num_ranks is None):
        raise InvalidArgumentError(
            f"megamoe.process_group: rank and num_ranks must be given together, got {rank} and {num_ranks}; leave both "
            "out to read the launcher's variables"
        )
    if num_ranks is not None and num_ranks < 1:
        raise InvalidArgumentError(f"megamoe.process_group: num_ranks must be at least 1, got {num_ranks}")
    return _structs.ProcessOptions(
        rank=_uint32(rank or 0, "megamoe.process_group: rank"),
        num_ranks=_uint32(num_ranks or 0, "megamoe.process_group: num_ranks"),
        timeout_ns=nanoseconds(timeout, "megamoe.process_group"),
        name=None if name is None else name.encode(),
        rendezvous_dir=None if rendezvous_dir is None else rendezvous_dir.encode(),
    )


def process_group(
    rank: int | None = None,
    num_ranks: int | None = None,
    *,
    name: str | None = None,
    rendezvous_dir: str | None = None,
    timeout: float | None = None,
) -> Group:
    """Collective: joins a group whose ranks are processes of this host; waits until all have come. CPU backend.

    Without `rank` and `num_ranks` they come from the launcher's variables (torchrun, mpirun).
    `name`: equal on the group's ranks, unlike any other group's of this user at the time. `rendezvous_dir`: an absolute
    path to a private folder in which they meet. `timeout`: seconds to wait for all of them; None: 300.

    Raises TimeoutError naming the ranks that did not come, ValueError for contradicting ranks, NotImplementedError
    without a launcher or for ranks on several hosts.
    """
    options = _process_options(rank, num_ranks, name, rendezvous_dir, timeout)
    handle = ctypes.c_void_p()
    check(lib.megamoe_process_group_join(ctypes.byref(options), ctypes.byref(handle)))
    return Group(handle.value or 0)


def cuda_process_group(
    rank: int | None = None,
    num_ranks: int | None = None,
    *,
    device_index: int,
    name: str | None = None,
    rendezvous_dir: str | None = None,
    timeout: float | None = None,
) -> Group:
    """Collective: as `process_group`, with this rank's memory on its GPU `device_index`. CUDA backend.

    Must not be called in a process that was forked after a use of CUDA. Raises NotImplementedError also in a build
    without CUDA, without a driver or GPU, or where a GPU cannot reach another.
    """
    options = _process_options(rank, num_ranks, name, rendezvous_dir, timeout)
    handle = ctypes.c_void_p()
    check(lib.megamoe_cuda_process_group_join(ctypes.byref(options), device_index, ctypes.byref(handle)))
    return Group(handle.value or 0)


def run_ranks(groups: Sequence[Group], function: Callable[[Group], Result]) -> list[Result]:
    """Calls `function(group)` for each rank on a thread of its own, and returns their results in rank order.

    Where ranks raise, the error with most to say is raised here: one of a rank's own before one about its peers.
    """
    results: list[Any] = [None] * len(groups)
    errors: list[BaseException | None] = [None] * len(groups)

    def run(index: int) -> None:
        try:
            results[index] = function(groups[index])
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            errors[index] = error

    threads = [threading.Thread(target=run, args=(i,), name=f"megamoe-rank-{i}") for i in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = [error for error in errors if error is not None]
    if raised:
        own = [error for error in raised if not (isinstance(error, MegamoeError) and error.code == "peer_failed")]
        raise (own or raised)[0]
    return results
