"""Checkpoint folders: one rank's part of a MoE layer as numpy arrays, its router, and the MoELayer that it makes."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megamoe import _structs
from megamoe._errors import BadFileError, InvalidArgumentError, MegamoeError, MissingFileError, NotSupportedError
from megamoe._groups import Group
from megamoe._layer import MoELayer
from megamoe._library import check, lib
from megamoe._tensors import ArrayLike, array_of, typed, view_of
from megamoe.routing import Router, Routing, new_routing, router_of

WEIGHTS = (
    "w13", "w13_scale", "w2", "w2_scale", "shared_w13", "shared_w13_scale", "shared_w2", "shared_w2_scale",
)  # fmt: skip


class _Handle:
    """Owns what the library loaded; the arrays keep it alive."""

    def __init__(self, folder: str, options: Any) -> None:
        self.handle = ctypes.c_void_p()
        check(lib.megamoe_checkpoint_load(os.fsencode(folder), ctypes.byref(options), ctypes.byref(self.handle)))

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), ctypes.c_void_p()
        if handle:
            lib.megamoe_checkpoint_destroy(handle)


class Checkpoint:
    """One rank's part of one MoE layer of a checkpoint; made by `load_checkpoint`.

    E experts over all ranks, n = E / ranks of them here, H hidden, I intermediate, m shared experts:

    `w13` [n, 2I, H], `w2` [n, H, I]: float8_e4m3fn (ml_dtypes), order `w13_layout`.
    `w13_scale` [n, 2, ceil(I/128), H/128], `w2_scale` [n, H/128, ceil(I/128)]: float32, value = code * scale.
    `shared_w13`, ...: the same, m in place of n; None where m is 0.

    The arrays are views of memory of the library, which lives as long as one of them does.
    """

    folder: str
    layer: int
    model_type: str
    hidden: int
    intermediate: int
    num_experts: int
    top_k: int
    expert_begin: int
    """The experts that are here: expert_begin to expert_end - 1."""
    expert_end: int
    num_shared_experts: int
    has_shared_weights: bool
    """Whether a gate weighs the shared experts; else they weigh 1."""
    swiglu_clamp: float | None
    routed_scaling: float
    """Of the router: inside the weights that `route` gives, so that a layer must not apply it again."""
    weight_on_input: bool
    """Whether the router's weight multiplies the routed experts' input (Llama-4); `run` does so."""
    router: Router | None
    """None: routing comes from elsewhere, since this one is not known or was not asked for."""
    was_packed: bool
    """Whether weights were rounded to E4M3 on loading."""
    notes: tuple[str, ...]
    """What was found and done, one sentence each."""
    group: Group | None
    w13: Any
    w13_scale: Any
    w2: Any
    w2_scale: Any
    shared_w13: Any
    shared_w13_scale: Any
    shared_w2: Any
    shared_w2_scale: Any
    w13_layout = "gate_up"
    scale_format = "float32"

    def __init__(self, folder: str, layer: int, group: Group | None, routed_only: bool) -> None:
        rank, num_ranks = (0, 1) if group is None else (group.rank, group.num_ranks)
        options = _structs.CheckpointOptions(layer=layer, rank=rank, num_ranks=num_ranks, routed_only=int(routed_only))
        self._owner = _Handle(folder, options)
        info = _structs.CheckpointInfo()
        check(lib.megamoe_checkpoint_describe(self._owner.handle, ctypes.byref(info)))
        self.folder = folder
        self.group = group
        for name in ("layer", "hidden", "intermediate", "num_experts", "top_k", "expert_begin", "expert_end",
                     "num_shared_experts", "routed_scaling"):  # fmt: skip
            setattr(self, name, getattr(info, name))
        self.has_shared_weights = bool(info.has_shared_weights)
        self.weight_on_input = bool(info.weight_on_input)
        self.was_packed = bool(info.was_packed)
        self.swiglu_clamp = info.swiglu_clamp or None
        self.model_type = info.model_type.decode(errors="replace")
        self.notes = tuple(info.notes.decode(errors="replace").splitlines())
        self.router = None
        if info.has_router:
            router = _structs.RouterConfig()
            check(lib.megamoe_checkpoint_router(self._owner.handle, ctypes.byref(router)))
            self.router = router_of(router)
        weights = _structs.ExpertWeights()
        check(lib.megamoe_checkpoint_weights(self._owner.handle, ctypes.byref(weights)))
        for name in WEIGHTS:
            tensor = getattr(weights, name)
            setattr(self, name, array_of(tensor, self._owner) if tensor.dtype else None)

    def __repr__(self) -> str:
        return (
            f"<megamoe.Checkpoint {self.folder}, layer {self.layer}, experts {self.expert_begin} to "
            f"{self.expert_end - 1} of {self.num_experts}>"
        )

    def make_layer(
        self,
        *,
        max_tokens_per_rank: int,
        group: Group | None = None,
        to_device: Callable[[Any, int], ArrayLike] | None = None,
        **options: Any,
    ) -> MoELayer:
        """Collective: a MoELayer of this shape with these weights, clamp and shared experts.

        `group`: None: the one that the checkpoint was loaded for. `options`: as of MoELayer (device, timeout, ...).
        On the CPU the weights are used in place. On a GPU they are copied there by torch or CuPy, or by
        `to_device(array, device_index)`, which is given numpy arrays of uint8 and float32 and returns their copies on
        that GPU; without all three it is a NotImplementedError.
        """
        group = self.group if group is None else group
        rank, num_ranks = (0, 1) if group is None else (group.rank, group.num_ranks)
        share = self.num_experts // num_ranks
        sizes: dict[str, Any] = {"hidden": self.hidden, "intermediate": self.intermediate, "top_k": self.top_k}
        sizes |= {"num_experts": self.num_experts, "num_shared_experts": self.num_shared_experts}
        twice = sorted((set(sizes) | set(WEIGHTS) | {"w13_layout", "scale_format", "routed_scaling"}) & set(options))
        if twice:
            raise InvalidArgumentError(
                f"megamoe.Checkpoint.make_layer: {', '.join(twice)} must be left out, since the checkpoint has it; "
                "make a megamoe.MoELayer for anything else"
            )
        options = {"swiglu_clamp": self.swiglu_clamp} | options
        layer = MoELayer(max_tokens_per_rank=max_tokens_per_rank, group=group, **sizes, **options)
        try:
            if self.num_experts % num_ranks or (self.expert_begin, self.expert_end) != (
                rank * share,
                (rank + 1) * share,
            ):
                raise InvalidArgumentError(
                    f"megamoe.Checkpoint.make_layer: rank {rank} of {num_ranks} has the experts {rank * share} to "
                    f"{(rank + 1) * share - 1}, got {self.expert_begin} to {self.expert_end - 1}; load the checkpoint "
                    "with this group"
                )
            weights = {name: getattr(self, name) for name in WEIGHTS}
            if layer.on_cuda:
                weights = _copies(weights, _device_index(layer), to_device)
            layer.load_weights(**weights, w13_layout=self.w13_layout, scale_format=self.scale_format)
        except BaseException:
            layer._abandon()
            raise
        return layer

    def route(self, hidden_states: ArrayLike) -> Routing:
        """The router's choice for T tokens, computed on the CPU: topk_ids, topk_weights, shared_weights.

        `hidden_states`: [T, H] bfloat16 or float32 in host memory. NotImplementedError where there is no router.
        """
        tokens = view_of(hidden_states, "hidden_states")
        num_tokens = tokens.shape[0] if tokens.shape else 0
        ids, weights = new_routing(num_tokens, self.top_k)
        shared = None
        if self.has_shared_weights:
            import numpy as np

            shared = np.empty((num_tokens, self.num_shared_experts), np.float32)
        check(
            lib.megamoe_checkpoint_route(
                self._owner.handle,
                ctypes.byref(tokens.tensor),
                ctypes.byref(view_of(ids, "topk_ids").tensor),
                ctypes.byref(view_of(weights, "topk_weights").tensor),
                None if shared is None else ctypes.byref(view_of(shared, "shared_weights").tensor),
            )
        )
        return Routing(ids, weights, shared)

    def run(self, layer: MoELayer, hidden_states: ArrayLike) -> Any:
        """Collective: the whole block, router and shared experts included, for T tokens in host memory on a CPU layer
        made by `make_layer`. Returns [T, H] bfloat16.

        Where the router's weight belongs on the input (Llama-4) the layer is called twice: the routed experts see
        weighed tokens, the shared ones the tokens as they are.
        """
        try:
            routing = self.route(hidden_states)
            weighed = self._weighed(hidden_states, routing)
        except MegamoeError:
            with contextlib.suppress(MegamoeError):  # the call is collective: every rank learns that it is refused
                layer.forward(hidden_states, None, None)
            raise
        if weighed is None:
            return layer.forward(
                hidden_states, routing.topk_ids, routing.topk_weights, shared_weights=routing.shared_weights
            )
        import numpy as np

        ones = np.ones_like(routing.topk_weights)
        if self.num_shared_experts == 0:
            return layer.forward(weighed, routing.topk_ids, ones)
        unused = np.zeros((len(weighed), self.num_shared_experts), np.float32)
        routed = layer.forward(weighed, routing.topk_ids, ones, shared_weights=unused)
        masked = np.full_like(routing.topk_ids, -1)
        shared = layer.forward(hidden_states, masked, ones, shared_weights=routing.shared_weights)
        return (routed.astype(np.float32) + shared.astype(np.float32)).astype(routed.dtype)

    def _weighed(self, hidden_states: ArrayLike, routing: Routing) -> Any:
        """The tokens times their weights; None where weights belong on the output."""
        if not self.weight_on_input:
            return None
        import numpy as np

        if not isinstance(hidden_states, np.ndarray):
            raise InvalidArgumentError(
                "megamoe.Checkpoint.run: hidden_states must be a numpy array where the router's weight belongs on the "
                f"input, got {type(hidden_states).__name__}; convert it"
            )
        return (hidden_states.astype(np.float32) * routing.topk_weights).astype(hidden_states.dtype)


def _device_index(layer: MoELayer) -> int:
    return int(getattr(layer.input_views()[0], "device_index", 0))


def _copies(weights: dict[str, Any], device: int, to_device: Callable[[Any, int], ArrayLike] | None) -> dict[str, Any]:
    """The same arrays on a GPU."""
    import numpy as np

    copy = _any_library() if to_device is None else to_device
    if copy is None:
        raise NotSupportedError(
            f"megamoe.Checkpoint.make_layer: the weights must be copied to GPU {device}, which needs torch or CuPy, "
            "and neither is installed; install one of them, or pass to_device"
        )
    copies: dict[str, Any] = {}
    for name, array in weights.items():
        if array is None:
            copies[name] = None
        elif array.dtype == np.float32:
            copies[name] = copy(array, device)
        else:
            copies[name] = typed(copy(array.view(np.uint8), device), "float8_e4m3fn")
    return copies


def _any_library() -> Callable[[Any, int], ArrayLike] | None:
    """What copies a numpy array to a GPU, by whichever library is installed."""
    with contextlib.suppress(ImportError):
        import torch

        return lambda array, device: torch.from_numpy(array).to(f"cuda:{device}")
    with contextlib.suppress(ImportError):
        import cupy

        def copy(array: Any, device: int) -> Any:
            with cupy.cuda.Device(device):
                return cupy.asarray(array)

        return copy
    return None


def load_checkpoint(
    folder: str | os.PathLike[str], layer: int, group: Group | None = None, *, routed_only: bool = False
) -> Checkpoint:
    """Loads this rank's experts of one layer, with its router and shared experts. Needs numpy and ml_dtypes.

    `folder`: config.json, and model.safetensors or shards under an index. `layer`: as the tensors count it.
    `group`: this rank's membership, of which only its number and size are used; None: one rank, all experts.
    `routed_only`: whether router and shared experts are left out; they then need not be there.

    BF16 weights are packed to E4M3 and MXFP4 is expanded: `notes` says so. Not collective.
    Raises FileNotFoundError where the folder is no checkpoint; ValueError (BadFileError) where tensors are missing,
    short, unknown or contradictory, each by name; NotImplementedError for what is recognised but not loaded.
    """
    path = os.fspath(folder)
    if not 0 <= layer < 2**32:
        raise InvalidArgumentError(f"megamoe.load_checkpoint: layer must be a number of the model's, got {layer}")
    try:
        return Checkpoint(path, layer, group, routed_only)
    except BadFileError as error:
        weights = ("model.safetensors", "model.safetensors.index.json")
        if (Path(path) / "config.json").exists() and any((Path(path) / name).exists() for name in weights):
            raise
        raise MissingFileError(str(error)) from None
