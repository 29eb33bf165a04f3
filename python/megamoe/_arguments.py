"""From Python's arguments to the C interface's numbers, with an error that names what is wrong."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable
from typing import Any

from megamoe import _structs
from megamoe._errors import InvalidArgumentError, MegamoeError
from megamoe._groups import Group, cuda_thread_group, thread_group
from megamoe._library import check, lib, nanoseconds
from megamoe._tensors import ArrayLike, absent, view_of


def choice(table: dict[str, int], value: str | None, what: str) -> int:
    """The number of a named choice; None becomes 0, which the library refuses with the reason."""
    if value is None:
        return 0
    if value not in table:
        raise InvalidArgumentError(f"{what} must be one of {', '.join(table)}, got {value!r}")
    return table[value]


class Arguments:
    """Collects a collective call's arguments. One that cannot be read becomes an absent one, so that this rank still
    takes part and every rank learns that the call is refused; its error is raised after the call."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.error: MegamoeError | None = None

    def read(self, make: Any, otherwise: Any) -> Any:
        try:
            return make()
        except Exception as error:  # whatever a foreign object raises: the other ranks must not wait for this one
            if self.error is None and isinstance(error, MegamoeError):
                self.error = error
            elif self.error is None:
                self.error = InvalidArgumentError(f"{self.where}: {type(error).__name__}: {error}")
                self.error.__cause__ = error
            return otherwise

    def check(self, code: int, layer: ctypes.c_void_p | None = None) -> None:
        if self.error is not None:
            raise self.error
        check(code, layer)


def layer_config(
    values: dict[str, Any],
    where: str,
    timeout: float | None = None,
    swiglu_clamp: float | None = None,
    routed_scaling: float = 1.0,
) -> Any:
    fields: dict[str, Any] = {}
    for name, value in values.items():
        try:
            number = 0 if value is None else operator.index(value)
        except TypeError as error:
            raise InvalidArgumentError(f"{where}: {name} must be a whole number, got {value!r}") from error
        if not 0 <= number < 2**32:
            raise InvalidArgumentError(f"{where}: {name} must be between 0 and 4294967295, got {value}")
        fields[name] = number
    if routed_scaling == 0:  # in the C interface that means "not given"
        raise InvalidArgumentError(f"{where}: routed_scaling must not be 0, which would drop the routed experts, got 0")
    return _structs.LayerConfig(
        timeout_ns=nanoseconds(timeout, where),
        swiglu_clamp=clamp_number(swiglu_clamp, where),
        routed_scaling=routed_scaling,
        **fields,
    )


def clamp_number(swiglu_clamp: float | None, where: str) -> float:
    """For the C interface, where 0 means "not given"; here None does, so that 0 is an error like other nonsense."""
    if swiglu_clamp is None:
        return 0.0
    if not swiglu_clamp > 0:
        raise InvalidArgumentError(
            f"{where}: swiglu_clamp must be greater than 0, got {swiglu_clamp}; leave it out for no clamp"
        )
    return float(swiglu_clamp)


def shape_of_weights(w13: ArrayLike, num_ranks: int) -> dict[str, int]:
    shape = view_of(w13, "w13").shape
    if len(shape) != 3:
        raise InvalidArgumentError(
            f"megamoe.MoELayer: w13 must have shape [num_experts / ranks, 2 * intermediate, hidden], got {list(shape)}"
        )
    return {"num_experts": shape[0] * num_ranks, "intermediate": shape[1] // 2, "hidden": shape[2]}


def own_group(device: int | str | None, w13: ArrayLike | None) -> Group:
    """A group of one rank: on `device`, or else where the weights lie."""
    if device is None:
        view = absent() if w13 is None else view_of(w13, "w13")
        device = view.device_index if view.on_cuda else "cpu"
    if device == "cpu":
        return thread_group(1)[0]
    if isinstance(device, str):
        kind, _, index = device.partition(":")
        if kind != "cuda" or not (index.isdigit() or index == ""):
            raise InvalidArgumentError(
                f"megamoe.MoELayer: device must be cpu, cuda, cuda:N or a number, got {device!r}"
            )
        device = int(index or 0)
    return cuda_thread_group([device])[0]


def rank_bits(active_ranks: Iterable[int] | None, where: str) -> Any:
    words = [0, 0]
    for rank in active_ranks or ():
        if not 0 <= rank < 128:
            raise InvalidArgumentError(f"{where}: active_ranks must name ranks of the group, got {rank}")
        words[rank // 64] |= 1 << rank % 64
    if active_ranks is not None and words == [0, 0]:
        raise InvalidArgumentError(f"{where}: active_ranks must name at least one rank; leave it out for all")
    return (ctypes.c_uint64 * 2)(*words)


def workspace_bytes(
    *,
    hidden: int,
    intermediate: int,
    num_experts: int,
    top_k: int,
    max_tokens_per_rank: int,
    num_ranks: int,
    backend: str = "cpu",
) -> int:
    """Bytes of symmetric memory that such a layer takes on each rank. Needs no group and no GPU."""
    config = layer_config(
        {
            "hidden": hidden,
            "intermediate": intermediate,
            "num_experts": num_experts,
            "top_k": top_k,
            "max_tokens_per_rank": max_tokens_per_rank,
        },
        "megamoe.workspace_bytes",
    )
    config.backend = backend.encode()
    found = ctypes.c_uint64()
    check(lib.megamoe_workspace_bytes(ctypes.byref(config), num_ranks, ctypes.byref(found)))
    return found.value
