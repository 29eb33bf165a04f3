"""fused_experts, shaped like vLLM's: the same numbers as a layer, and no argument that is silently ignored."""

import types

import numpy as np
import pytest

import megamoe
import oracle
import support
from megamoe import _fused


@pytest.fixture(autouse=True)
def no_kept_layers():
    _fused.release_fused_experts()
    yield
    _fused.release_fused_experts()


def call(data, **changes):
    arguments = {
        "hidden_states": data.tokens, "w1": data.w13, "w2": data.w2, "topk_weights": data.weights, "topk_ids": data.ids,
        "w1_scale": data.w13_scale, "w2_scale": data.w2_scale,
    }  # fmt: skip
    return megamoe.fused_experts(**arguments | changes)


def test_the_oracles_numbers():
    data = support.Layer()
    support.assert_close(call(data), data.expected())
    joined = data.w13_scale.reshape(8, 2, 2)  # one grid over gate and up, as vLLM keeps it
    again = call(data, w1_scale=joined, topk_ids=data.ids.astype(np.int32), block_shape=[128, 128])
    support.assert_close(again, data.expected())


def test_positions_are_vllms():
    data = support.Layer()
    output = megamoe.fused_experts(
        data.tokens, data.w13, data.w2, data.weights, data.ids, w1_scale=data.w13_scale, w2_scale=data.w2_scale
    )
    support.assert_close(output, data.expected())


def test_in_place():
    data = support.Layer()
    want, tokens = data.expected(), data.tokens.copy()
    assert call(data, hidden_states=tokens, inplace=True) is tokens
    support.assert_close(tokens, want)


def test_scales_in_a_quant_config():
    data = support.Layer()
    config = types.SimpleNamespace(w1_scale=data.w13_scale, w2_scale=data.w2_scale, block_shape=[128, 128])
    support.assert_close(call(data, w1_scale=None, w2_scale=None, quant_config=config), data.expected())


def test_clamp_and_layout():
    data = support.Layer()
    support.assert_close(call(data, swiglu_limit=0.5), data.expected(clamp=0.5))
    support.assert_close(call(data, w13_layout="up_gate"), data.expected(layout="up_gate"))


def test_weights_that_change_between_calls_are_used():
    first, second = support.Layer(seed=1), support.Layer(seed=2)
    for _ in range(2):
        for data in (first, second):
            support.assert_close(call(data), data.expected())
    assert len(_fused._layers) == 1


def test_more_tokens_replace_the_smaller_layer_and_few_layers_are_kept():
    small, large = support.Layer(num_tokens=3), support.Layer(num_tokens=100)
    support.assert_close(call(small), small.expected())
    support.assert_close(call(large), large.expected())
    assert len(_fused._layers) == 1
    for top_k in range(1, 8):
        for hidden in (128, 256):
            data = support.Layer(hidden=hidden, top_k=top_k, num_tokens=1)
            support.assert_close(call(data), data.expected())
    assert len(_fused._layers) == _fused._MOST_LAYERS


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"activation": "gelu"}, "activation must be 'silu', got 'gelu'"),
        ({"apply_router_weight_on_input": True}, "apply_router_weight_on_input must be False"),
        ({"use_fp8_w8a8": False}, "use_fp8_w8a8 must be True"),
        ({"use_int8_w8a8": True}, "use_int8_w8a8 must be False"),
        ({"use_int4_w4a16": True}, "use_int4_w4a16 must be False"),
        ({"per_channel_quant": True}, "per_channel_quant must be False"),
        ({"block_shape": [64, 128]}, r"block_shape must be None or \[128, 128\], got \[64, 128\]"),
        ({"a1_scale": 1.0}, "a1_scale must be None"),
        ({"w1_zp": 1.0}, "w1_zp must be None"),
    ],
)
def test_what_cannot_be_honoured_is_refused(change, sentence):
    with pytest.raises(NotImplementedError, match=sentence):
        call(support.Layer(), **change)


def test_wrong_shapes_and_missing_scales():
    data = support.Layer()
    with pytest.raises(ValueError, match="w13_scale must be given"):
        call(data, w1_scale=None)
    with pytest.raises(ValueError, match="w1 must have 3 dimensions"):
        call(data, w1=data.w13[0])
    with pytest.raises(ValueError, match="expert_map must be given where global_num_experts"):
        call(data, global_num_experts=16)
    with pytest.raises(ValueError, match="w13 must be float8_e4m3fn, got bfloat16"):
        call(data, w1=data.w13.astype(oracle.BF16))
    support.assert_close(call(data), data.expected())
