"""The SM90 FP8 Mega MoE calls that DeepGEMM offers, on a MoELayer; one symmetric buffer serves a whole model."""

import math
from collections import OrderedDict
from typing import Any, Optional

import torch
from torch import Tensor

import megamoe.torch
from megamoe._errors import InvalidArgumentError, NotSupportedError
from megamoe._layer import MoELayer, Weights

Pair = tuple[Tensor, Tensor]

_TOKEN_ALIGNMENT = 128
_MOST_WEIGHTS = 4096
_RECIPE = (128, 128, 128)


def _refuse(function: str, what: str, wanted: Any, got: Any) -> None:
    if got != wanted:
        raise NotSupportedError(f"deep_gemm.{function} (megamoe): {what} must be {wanted!r}, got {got!r}")


class SM90SymmBuffer:
    """This rank's inputs and workspace. Collective to make and to destroy.

    x: [capacity, hidden] float8_e4m3fn; x_sf: [capacity, hidden / 128] float32; topk_idx: [capacity, top-k] int64, -1
    masks a slot; topk_weights: [capacity, top-k] float32. x and x_sf lie in the symmetric workspace: a call copies no
    tokens.
    """

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        use_fp8_dispatch: bool = True,
        activation: str = "swiglu",
        num_shared_experts: int = 0,
    ) -> None:
        where = "SM90SymmBuffer"
        _refuse(where, "use_fp8_dispatch", True, use_fp8_dispatch)
        _refuse(where, "activation", "swiglu", activation)
        _refuse(where, "num_shared_experts", 0, num_shared_experts)
        self.group = group
        self.num_experts = num_experts
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_topk = num_topk
        self.hidden = hidden
        self.intermediate_hidden = intermediate_hidden
        self._ranks = megamoe.torch.process_group(group, torch.device("cuda", torch.cuda.current_device()))
        self._layer: Optional[MoELayer] = MoELayer(
            group=self._ranks,
            hidden=hidden,
            intermediate=intermediate_hidden,
            num_experts=num_experts,
            top_k=num_topk,
            max_tokens_per_rank=num_max_tokens_per_rank,
            backend="cuda",
        )
        self._weights: OrderedDict[tuple[Any, ...], Weights] = OrderedDict()
        device = torch.device("cuda", torch.cuda.current_device())
        self.x: Any
        self.x_sf: Any
        self.x, self.x_sf = megamoe.torch.input_views(self._layer)
        slots = (num_max_tokens_per_rank, num_topk)
        self.topk_idx: Any = torch.full(slots, -1, dtype=torch.int64, device=device)
        self.topk_weights: Any = torch.zeros(slots, dtype=torch.float32, device=device)

    @property
    def layer(self) -> MoELayer:
        """The layer behind the buffer, for `finish()` and `reset()`."""
        if self._layer is None:
            raise InvalidArgumentError(
                "deep_gemm.SM90SymmBuffer (megamoe): the buffer must be alive, and it is destroyed"
            )
        return self._layer

    def prepared(self, l1: Pair, l2: Pair) -> Weights:
        """The weights of one model layer, made ready once. They stay the caller's: nothing here keeps them alive."""
        tensors = (*l1, *l2)
        key = tuple((t.data_ptr(), tuple(t.shape), t.dtype) for t in tensors)
        found = self._weights.get(key)
        if found is None:
            # Rows come interleaved by 8; scale grids stay [gate, up] in natural order.
            found = self.layer.prepare_weights(
                w13=l1[0], w13_scale=l1[1], w2=l2[0], w2_scale=l2[1], w13_layout="interleaved_8",
                scale_format="float32", keep_alive=False,
            )  # fmt: skip
            self._weights[key] = found
            while len(self._weights) > _MOST_WEIGHTS:
                self._weights.popitem(last=False)
        self._weights.move_to_end(key)
        return found

    def destroy(self) -> None:
        """Collective: waits for the last call and frees the workspace."""
        layer, self._layer = self._layer, None
        self.x = self.x_sf = self.topk_idx = self.topk_weights = self.group = None
        if layer is None:
            return
        try:
            torch.cuda.synchronize()
            layer.finish()
        finally:
            self._weights.clear()
            layer.close()
            self._ranks.close()


SymmBuffer = SM90SymmBuffer


def get_symm_buffer_for_sm90_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    use_fp8_dispatch: bool = True,
    activation: str = "swiglu",
    num_shared_experts: int = 0,
) -> SM90SymmBuffer:
    """Collective: a buffer for `num_max_tokens_per_rank` tokens, rounded up to a multiple of 128.

    `group`: a torch ProcessGroup; its ranks own num_experts / ranks consecutive experts each. On the current GPU.
    """
    capacity = -(-num_max_tokens_per_rank // _TOKEN_ALIGNMENT) * _TOKEN_ALIGNMENT
    return SM90SymmBuffer(
        group,
        num_experts,
        capacity,
        num_topk,
        hidden,
        intermediate_hidden,
        use_fp8_dispatch,
        activation,
        num_shared_experts,
    )


def transform_weights_for_mega_moe_sm90(l1_weights: Pair, l2_weights: Pair) -> tuple[Pair, Pair]:
    """From ([n, 2I, H] gate rows then up rows, [n, 2I/128, H/128]) and ([n, H, I], [n, H/128, I/128]) to what
    `fp8_mega_moe` takes: rows of the first come in turns of 8 gate and 8 up rows (a copy), the rest is as it was."""
    codes, scales = l1_weights
    if codes.dim() != 3 or codes.shape[1] % 16 != 0:
        raise InvalidArgumentError(
            "deep_gemm.transform_weights_for_mega_moe_sm90 (megamoe): l1_weights must have shape [n, 2I, H] with I a "
            f"multiple of 8, got {list(codes.shape)}"
        )
    num_experts, rows, columns = codes.shape
    # [n, half, turn, 8, H] with half before turn becomes turn before half; bytes, since not every device permutes FP8.
    turns = codes.view(torch.uint8).view(num_experts, 2, rows // 16, 8, columns).transpose(1, 2)
    return (turns.reshape(num_experts, rows, columns).view(codes.dtype), scales), l2_weights


def fp8_mega_moe(
    y: Tensor,
    l1_weights: Pair,
    l2_weights: Pair,
    sym_buffer: SM90SymmBuffer,
    cumulative_local_expert_recv_stats: Optional[Tensor] = None,
    recipe: tuple[int, int, int] = _RECIPE,
    activation: str = "swiglu",
    activation_clamp: Optional[float] = None,
    fast_math: bool = True,
) -> None:
    """Collective, on the current stream: y = the layer of the first T = y.shape[0] tokens of the buffer.

    `y`: [T, hidden] bfloat16. Weights as `transform_weights_for_mega_moe_sm90` gives them. The statistics, int32 [n],
    grow by the rows that each of this rank's experts receives. `activation_clamp`: None or infinity for none.
    `fast_math` is accepted and changes nothing: there is one arithmetic (docs/numerics.md).
    """
    del fast_math
    where = "fp8_mega_moe"
    _refuse(where, "recipe", _RECIPE, tuple(recipe))
    _refuse(where, "activation", "swiglu", activation)
    if activation_clamp is not None and math.isinf(activation_clamp) and activation_clamp > 0:
        activation_clamp = None
    layer = sym_buffer.layer
    num_tokens = y.shape[0]
    layer.use_weights(sym_buffer.prepared(l1_weights, l2_weights))
    layer.forward(
        sym_buffer.x[:num_tokens],
        sym_buffer.topk_idx[:num_tokens],
        sym_buffer.topk_weights[:num_tokens],
        hidden_states_scale=sym_buffer.x_sf[:num_tokens],
        scale_format="float32",
        output=y,
        swiglu_clamp=activation_clamp,
        cumulative_recv_counts=cumulative_local_expert_recv_stats,
        stream=torch.cuda.current_stream(y.device),
    )


fp8_mega_moe_sm90 = fp8_mega_moe
