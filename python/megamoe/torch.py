"""The operators `megamoe::moe_forward` and `..._counting`, and torch.distributed groups as rendezvous. Imports torch.

They have fake implementations, so that torch.compile traces them, and enqueue on the current stream, so that CUDA
graphs capture them. Weights and tokens are used where they lie.
"""

import itertools
import socket
import uuid
import weakref
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor

from megamoe._errors import InvalidArgumentError, NotSupportedError
from megamoe._groups import Group, cuda_process_group, cuda_thread_group, thread_group
from megamoe._groups import process_group as _host_process_group
from megamoe._layer import MoELayer

__all__ = ["MoE", "input_views", "layer_id", "moe_forward", "process_group"]

_ids = itertools.count(1)
_layers: MutableMapping[int, MoELayer] = weakref.WeakValueDictionary()


def layer_id(layer: MoELayer) -> int:
    """The number by which the operator knows a layer; a weak reference, so that a layer goes with its last owner."""
    known = getattr(layer, "_torch_id", None)
    if known is None:
        known = next(_ids)
        layer._torch_id = known
        _layers[known] = layer
    return int(known)


def _run(
    layer: int, counts: Optional[Tensor], hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor, **named: Any
) -> Tensor:  # fmt: skip
    target = _layers.get(layer)
    if target is None:
        raise InvalidArgumentError(
            f"megamoe::moe_forward: layer must be the number of a living layer, got {layer}; keep a reference to it"
        )
    output = torch.empty(hidden_states.shape, dtype=torch.bfloat16, device=hidden_states.device)
    stream = torch.cuda.current_stream(hidden_states.device) if hidden_states.is_cuda else None
    target.forward(
        hidden_states, topk_ids, topk_weights, output=output, cumulative_recv_counts=counts, stream=stream, **named
    )
    return output


def _forward(
    hidden_states: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    layer: int,
    hidden_states_scale: Optional[Tensor] = None,
    scale_format: Optional[str] = None,
    shared_weights: Optional[Tensor] = None,
    expert_map: Optional[Tensor] = None,
    active_ranks: Optional[Sequence[int]] = None,
    renormalize: bool = False,
) -> Tensor:
    return _run(
        layer,
        None,
        hidden_states,
        topk_ids,
        topk_weights,
        hidden_states_scale=hidden_states_scale,
        scale_format=scale_format,
        shared_weights=shared_weights,
        expert_map=expert_map,
        active_ranks=active_ranks,
        renormalize=renormalize,
    )


def _forward_counting(
    hidden_states: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    layer: int,
    cumulative_recv_counts: Tensor,
    hidden_states_scale: Optional[Tensor] = None,
    scale_format: Optional[str] = None,
    shared_weights: Optional[Tensor] = None,
    expert_map: Optional[Tensor] = None,
    active_ranks: Optional[Sequence[int]] = None,
    renormalize: bool = False,
) -> Tensor:
    return _run(
        layer,
        cumulative_recv_counts,
        hidden_states,
        topk_ids,
        topk_weights,
        hidden_states_scale=hidden_states_scale,
        scale_format=scale_format,
        shared_weights=shared_weights,
        expert_map=expert_map,
        active_ranks=active_ranks,
        renormalize=renormalize,
    )


def _fake(hidden_states: Tensor, *arguments: Any, **named: Any) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape, dtype=torch.bfloat16)


# Two operators, since an optional tensor that may be written is more than torch's compiler can follow.
_operator = torch.library.custom_op("megamoe::moe_forward", _forward, mutates_args=())
_operator.register_fake(_fake)
_counting_operator = torch.library.custom_op(
    "megamoe::moe_forward_counting", _forward_counting, mutates_args=("cumulative_recv_counts",)
)
_counting_operator.register_fake(_fake)


def moe_forward(
    layer: Union[MoELayer, int],
    hidden_states: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    *,
    hidden_states_scale: Optional[Tensor] = None,
    scale_format: Optional[str] = None,
    shared_weights: Optional[Tensor] = None,
    expert_map: Optional[Tensor] = None,
    cumulative_recv_counts: Optional[Tensor] = None,
    active_ranks: Optional[Sequence[int]] = None,
    renormalize: bool = False,
) -> Tensor:
    """Collective: MoELayer.forward as an operator, on the current stream. Returns a new [T, H] bfloat16 tensor.

    On a GPU it returns before the work is done; what the GPU finds wrong (an id out of range, a deadline) is raised by
    the next call or by `layer.finish()`. `layer`: the layer, or its `layer_id`. Other arguments as in MoELayer.forward.
    """
    number = layer_id(layer) if isinstance(layer, MoELayer) else layer
    first = (hidden_states, topk_ids, topk_weights, number)
    last = (hidden_states_scale, scale_format, shared_weights, expert_map, active_ranks, renormalize)
    result: Tensor
    if cumulative_recv_counts is None:
        result = torch.ops.megamoe.moe_forward(*first, *last)
    else:
        result = torch.ops.megamoe.moe_forward_counting(*first, cumulative_recv_counts, *last)
    return result


class MoE(torch.nn.Module):
    """A module around a layer: `module(hidden_states, topk_ids, topk_weights)`; the weights are the layer's."""

    def __init__(self, layer: MoELayer) -> None:
        super().__init__()
        self.layer = layer
        self.layer_id = layer_id(layer)

    def forward(self, hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor, **named: Any) -> Tensor:
        """See `moe_forward`."""
        return moe_forward(self.layer_id, hidden_states, topk_ids, topk_weights, **named)


def input_views(layer: MoELayer) -> tuple[Tensor, Tensor]:
    """Where E4M3 tokens may be written so that a call on them copies nothing.

    Returns codes [max_tokens_per_rank, H] float8_e4m3fn and scales [max_tokens_per_rank, H/128] float32. Fill the first
    T rows on the current stream and pass `codes[:T]` and `scales[:T]`. They live as long as the layer.
    """
    codes, scales = layer.input_views()
    if hasattr(codes, "__cuda_array_interface__"):
        device = torch.device("cuda", codes.device_index)
        return (
            torch.as_tensor(codes, device=device).view(torch.float8_e4m3fn),
            torch.as_tensor(scales, device=device),
        )
    return torch.from_numpy(codes.view("uint8")).view(torch.float8_e4m3fn), torch.from_numpy(scales)


def _host_name() -> str:
    """What two processes of one host have in common, and no two hosts."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else socket.gethostname()


def process_group(
    group: Any = None,
    device: Union[torch.device, str, None] = None,
    *,
    timeout: Optional[float] = None,
) -> Group:
    """Collective: a megamoe group with the ranks of a torch.distributed group, which serves as rendezvous only.

    `group`: a torch ProcessGroup; None: the default one. `device`: "cpu", or this rank's GPU; None: the current GPU
    where the group's backend is NCCL, else the host. `timeout`: seconds for all ranks to come; None: 300.

    Raises NotImplementedError where the ranks are on several hosts.
    """
    import torch.distributed as dist

    num_ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise InvalidArgumentError("megamoe.torch.process_group: this process must be one of the group's, and is not")
    if device is None:
        device = "cuda" if "nccl" in str(dist.get_backend(group)) else "cpu"
    place = torch.device(device)
    index = torch.cuda.current_device() if place.type == "cuda" and place.index is None else place.index
    if num_ranks == 1:
        return cuda_thread_group([index])[0] if place.type == "cuda" else thread_group(1)[0]
    met: list[Any] = [None] * num_ranks
    dist.all_gather_object(met, (_host_name(), uuid.uuid4().hex), group=group)
    others = [other for other in range(num_ranks) if met[other][0] != met[rank][0]]
    if others:
        raise NotSupportedError(
            f"megamoe.torch.process_group: all ranks must be on one host, and ranks {others} are not on this one (rank "
            f"{rank}); make a group of each host's ranks"
        )
    name = f"torch-{met[0][1]}"
    if place.type == "cuda":
        return cuda_process_group(rank, num_ranks, device_index=index, name=name, timeout=timeout)
    return _host_process_group(rank, num_ranks, name=name, timeout=timeout)
