"""`fused_experts`: one call with the argument names that vLLM uses, for callers that keep no layer themselves."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from megamoe._errors import InvalidArgumentError, NotSupportedError
from megamoe._layer import MoELayer, Weights
from megamoe._tensors import ArrayLike, current_stream, is_torch, new_output, view_of

_MOST_LAYERS = 8
_MOST_SETS = 4096  # of one shape: some hundred bytes each
_lock = threading.Lock()
_layers: OrderedDict[tuple[Any, ...], _Cached] = OrderedDict()


class _Cached:
    def __init__(self, layer: MoELayer) -> None:
        self.layer = layer
        self.loaded: tuple[Any, ...] = ()
        self.sets: OrderedDict[tuple[Any, ...], Weights] = OrderedDict()

    def switch(self, loaded: tuple[Any, ...], prepare: Callable[[MoELayer], Weights]) -> None:
        """Uses GPU weights, made ready once: they are read where they lie, so that what lies there now is what counts,
        and nothing has to be kept alive."""
        if loaded not in self.sets:
            self.sets[loaded] = prepare(self.layer)
            while len(self.sets) > _MOST_SETS:
                self.sets.popitem(last=False)
        self.sets.move_to_end(loaded)
        self.layer.use_weights(self.sets[loaded])


def _refuse_others(given: dict[str, Any]) -> None:
    """Whatever would change the numbers and cannot be honoured is an error, never ignored."""
    for name, (value, allowed, remedy) in given.items():
        if value not in allowed:
            raise NotSupportedError(
                f"megamoe.fused_experts: {name} must be {' or '.join(map(repr, allowed))}, got {value!r}; {remedy}"
            )


def _num_logical(expert_map: ArrayLike | None, global_num_experts: int, num_experts: int) -> int:
    """Entries of the expert map; 0 where ids are those of the experts here."""
    if expert_map is None:
        if global_num_experts not in (-1, num_experts):
            raise InvalidArgumentError(
                f"megamoe.fused_experts: expert_map must be given where global_num_experts ({global_num_experts}) is "
                f"not the number of experts in w1 ({num_experts})"
            )
        return 0
    num_logical = view_of(expert_map, "expert_map").shape[0]
    if global_num_experts not in (-1, num_logical):
        raise InvalidArgumentError(
            f"megamoe.fused_experts: expert_map must have global_num_experts ({global_num_experts}) entries, got "
            f"{num_logical}"
        )
    return num_logical


def _layer_for(key: tuple[Any, ...], capacity: int, arguments: dict[str, Any]) -> _Cached:
    """A kept layer of that shape with room for `capacity` tokens; a smaller one is replaced, so that one remains."""
    cached = _layers.get(key)
    if cached is not None and cached.layer.max_tokens_per_rank < capacity:
        _layers.pop(key).layer.close()
        cached = None
    if cached is None:
        rounded = max(64, 1 << (capacity - 1).bit_length())
        cached = _Cached(MoELayer(max_tokens_per_rank=rounded, **arguments))
        _layers[key] = cached
    _layers.move_to_end(key)
    while len(_layers) > _MOST_LAYERS:
        _layers.popitem(last=False)[1].layer.close()
    return cached


def release_fused_experts() -> None:
    """Frees the workspaces that `fused_experts` keeps between calls, and lets go of the weights it saw last."""
    with _lock:
        while _layers:
            _layers.popitem()[1].layer.close()


def fused_experts(
    hidden_states: ArrayLike,
    w1: ArrayLike,
    w2: ArrayLike,
    topk_weights: ArrayLike,
    topk_ids: ArrayLike,
    inplace: bool = False,
    activation: str = "silu",
    apply_router_weight_on_input: bool = False,
    use_fp8_w8a8: bool = True,
    use_int8_w8a8: bool = False,
    use_int8_w8a16: bool = False,
    use_int4_w4a16: bool = False,
    per_channel_quant: bool = False,
    global_num_experts: int = -1,
    expert_map: ArrayLike | None = None,
    w1_scale: ArrayLike | None = None,
    w2_scale: ArrayLike | None = None,
    w1_zp: ArrayLike | None = None,
    w2_zp: ArrayLike | None = None,
    a1_scale: ArrayLike | None = None,
    a2_scale: ArrayLike | None = None,
    block_shape: list[int] | None = None,
    quant_config: Any = None,
    *,
    w13_layout: str = "gate_up",
    swiglu_limit: float | None = None,
) -> Any:
    """The experts of one process on their tokens: [T, H] bfloat16, new or (with `inplace`) in `hidden_states`.

    `hidden_states`: [T, H] bfloat16. `w1`: [E, 2I, H] float8_e4m3fn, gate rows then up rows (`w13_layout` says
    otherwise). `w2`: [E, H, I] float8_e4m3fn. `topk_weights`: [T, K] float32. `topk_ids`: [T, K] int32 or int64,
    -1 masks a slot. `w1_scale`: [E, 2I/128, H/128], `w2_scale`: [E, H/128, I/128] float32, in blocks of 128 x 128
    (`block_shape` None or [128, 128]); a `quant_config` object with attributes of these names is read too.
    `expert_map`: [global_num_experts] int32, global expert to one of the E here, or -1 for one that is elsewhere.
    `swiglu_limit`: see MoELayer's swiglu_clamp.

    Everything that this FP8 layer cannot honour (other activations, other quantisations, router weights on the input)
    raises NotImplementedError. With torch tensors on a GPU the call is enqueued on the current stream, what the GPU
    finds wrong is raised by a later call, and a call after a first one of its shape and weights can be captured in a
    graph. Layers are kept for the last 8 shapes; weights in host memory stay alive until the next ones;
    `release_fused_experts` lets go of both.
    """
    w1_scale, w2_scale, block_shape, a1_scale, a2_scale = (
        getattr(quant_config, name, None) if value is None else value
        for name, value in (
            ("w1_scale", w1_scale), ("w2_scale", w2_scale), ("block_shape", block_shape),
            ("a1_scale", a1_scale), ("a2_scale", a2_scale),
        )
    )  # fmt: skip
    quantise = "the weights must be float8_e4m3fn with 128 x 128 scales"
    _refuse_others(
        {
            "activation": (str(getattr(activation, "value", activation)), ("silu",), "it is SwiGLU"),
            "apply_router_weight_on_input": (
                apply_router_weight_on_input, (False,), "scale hidden_states and pass weights of 1 (top-k 1)"
            ),
            "use_fp8_w8a8": (use_fp8_w8a8, (True,), quantise),
            "use_int8_w8a8": (use_int8_w8a8, (False,), quantise),
            "use_int8_w8a16": (use_int8_w8a16, (False,), quantise),
            "use_int4_w4a16": (use_int4_w4a16, (False,), quantise),
            "per_channel_quant": (per_channel_quant, (False,), quantise),
            "w1_zp": (w1_zp, (None,), "E4M3 weights have no zero points"),
            "w2_zp": (w2_zp, (None,), "E4M3 weights have no zero points"),
            "a1_scale": (a1_scale, (None,), "activations are quantised here, per 128 columns"),
            "a2_scale": (a2_scale, (None,), "activations are quantised here, per 128 columns"),
            "block_shape": (None if block_shape is None else list(block_shape), (None, [128, 128]), quantise),
        }
    )  # fmt: skip
    ids, weights, tokens = view_of(topk_ids, "topk_ids"), view_of(w1, "w1"), view_of(hidden_states, "hidden_states")
    for what, view, dims in (("hidden_states", tokens, 2), ("topk_ids", ids, 2), ("w1", weights, 3)):
        if len(view.shape) != dims:
            raise InvalidArgumentError(
                f"megamoe.fused_experts: {what} must have {dims} dimensions, got shape {list(view.shape)}"
            )
    num_logical = _num_logical(expert_map, global_num_experts, weights.shape[0])
    top_k, num_experts = ids.shape[1], weights.shape[0]
    arguments: dict[str, Any] = {
        "top_k": top_k, "num_experts": num_experts, "intermediate": weights.shape[1] // 2, "hidden": weights.shape[2],
        "swiglu_clamp": swiglu_limit, "num_logical_experts": num_logical,
        "device": weights.device_index if weights.on_cuda else "cpu",
    }  # fmt: skip
    output = new_output(hidden_states, (tokens.shape[0], weights.shape[2]))
    with _lock:
        cached = _layer_for(tuple(arguments.values()), max(1, tokens.shape[0]), arguments)
        given = (weights, view_of(w2, "w2"), view_of(w1_scale, "w1_scale"), view_of(w2_scale, "w2_scale"))
        loaded = (w13_layout, *((view.tensor.data, view.shape, view.tensor.dtype) for view in given))
        use = {"w13_layout": w13_layout, "scale_format": "float32"}
        if weights.on_cuda:
            cached.switch(
                loaded, lambda layer: layer.prepare_weights(w1, w2, w1_scale, w2_scale, keep_alive=False, **use)
            )
        elif cached.loaded != loaded:
            # The layer keeps what it loaded alive, so that equal addresses are the same arrays.
            cached.loaded = ()
            cached.layer.load_weights(w1, w2, w1_scale, w2_scale, **use)
            cached.loaded = loaded
        cached.layer.forward(
            hidden_states, topk_ids, topk_weights, output=output, expert_map=expert_map, stream=current_stream(w1)
        )
    if not inplace:
        return output
    if is_torch(hidden_states):
        hidden_states.copy_(output)
    else:
        hidden_states[...] = output
    return hidden_states
