"""The layer's numbers from Python against the numpy oracle: types, ranks, masks, shapes, layouts of memory."""

import numpy as np
import pytest

import megamoe
import oracle
import support


def test_one_rank_meets_the_oracle():
    data = support.Layer()
    with data.make() as layer:
        output = layer(data.tokens, data.ids, data.weights)
    assert output.dtype == oracle.BF16 and output.shape == data.tokens.shape
    support.assert_close(output, data.expected())


@pytest.mark.parametrize("shape", [(128, 64, 4, 1), (384, 192, 6, 3), (256, 320, 4, 4), (512, 256, 16, 8)])
def test_shapes_meet_the_oracle(shape):
    hidden, intermediate, num_experts, top_k = shape
    data = support.Layer(hidden, intermediate, num_experts, top_k, num_tokens=5, seed=intermediate)
    with data.make() as layer:
        assert (layer.hidden, layer.intermediate, layer.num_experts) == (hidden, intermediate, num_experts)
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


def test_sizes_and_weights_can_be_given_apart():
    data = support.Layer()
    layer = megamoe.MoELayer(hidden=256, intermediate=128, num_experts=8, top_k=2, max_tokens_per_rank=16)
    with layer, pytest.raises(ValueError, match="load_weights must have succeeded before"):
        layer(data.tokens, data.ids, data.weights)
    layer = megamoe.MoELayer(hidden=256, intermediate=128, num_experts=8, top_k=2, max_tokens_per_rank=16)
    with layer:
        layer.load_weights(**data.share(0, 1), w13_layout="gate_up", scale_format="float32")
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_as_threads_give_the_bits_of_one(num_ranks):
    data = support.Layer(num_tokens=11)
    with data.make() as layer:
        alone = layer(data.tokens, data.ids, data.weights)
    bounds = [11 * r // num_ranks for r in range(num_ranks + 1)]

    def rank(group):
        mine = slice(bounds[group.rank], bounds[group.rank + 1])
        with data.make(group) as layer:
            return layer(data.tokens[mine], data.ids[mine], data.weights[mine])

    together = np.concatenate(support.on_ranks(num_ranks, rank))
    assert np.array_equal(together.view(np.uint16), alone.view(np.uint16))


def test_int32_and_int64_ids_are_the_same():
    data = support.Layer()
    with data.make() as layer:
        wide = layer(data.tokens, data.ids, data.weights)
        narrow = layer(data.tokens, data.ids.astype(np.int32), data.weights)
    assert np.array_equal(wide.view(np.uint16), narrow.view(np.uint16))


def test_fp8_tokens_give_the_bits_of_bf16_ones():
    data = support.Layer()
    codes, scales = oracle.quantise_rows(data.tokens)
    with data.make() as layer:
        quantised_here = layer(data.tokens, data.ids, data.weights)
        quantised_before = layer(codes, data.ids, data.weights, hidden_states_scale=scales, scale_format="float32")
    assert np.array_equal(quantised_here.view(np.uint16), quantised_before.view(np.uint16))


def test_zero_tokens_on_the_only_rank():
    data = support.Layer()
    with data.make() as layer:
        output = layer(data.tokens[:0], data.ids[:0], data.weights[:0])
        assert output.shape == (0, 256)
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


def test_zero_tokens_on_one_of_two_ranks():
    data = support.Layer()

    def rank(group):
        mine = slice(0, 12 if group.rank == 1 else 0)
        with data.make(group) as layer:
            return layer(data.tokens[mine], data.ids[mine], data.weights[mine])

    none, all_of_them = support.on_ranks(2, rank)
    assert none.shape == (0, 256)
    support.assert_close(all_of_them, data.expected())


def test_masked_slots_are_not_read_and_duplicates_count_twice():
    data = support.Layer(top_k=4)
    data.ids[0] = -1
    data.ids[1, 2] = -1
    data.ids[2] = [3, 3, -1, 3]
    data.weights[data.ids < 0] = np.nan
    with data.make() as layer:
        output = layer(data.tokens, data.ids, data.weights)
    assert np.array_equal(output[0].view(np.uint16), np.zeros(256, np.uint16))
    support.assert_close(output, data.expected())


def test_output_can_be_given_and_strided():
    data = support.Layer()
    wide = np.full((12, 300), 7, oracle.BF16)
    with data.make() as layer:
        returned = layer(data.tokens, data.ids, data.weights, output=wide[:, 20:276])
        fresh = layer(data.tokens, data.ids, data.weights)
    assert returned.base is wide
    assert np.array_equal(wide[:, 20:276].view(np.uint16), fresh.view(np.uint16))
    assert (wide[:, :20] == 7).all() and (wide[:, 276:] == 7).all()


def test_inputs_may_be_strided():
    data = support.Layer()
    tokens = np.zeros((24, 512), oracle.BF16)
    tokens[::2, :256] = data.tokens
    ids, weights = np.asfortranarray(data.ids), np.asfortranarray(data.weights)
    with data.make() as layer:
        plain = layer(data.tokens, data.ids, data.weights)
        strided = layer(tokens[::2, :256], ids, weights)
    assert np.array_equal(plain.view(np.uint16), strided.view(np.uint16))


def test_workspace_bytes_needs_no_group():
    sizes = {"hidden": 256, "intermediate": 128, "num_experts": 8, "top_k": 2, "max_tokens_per_rank": 16}
    few = megamoe.workspace_bytes(**sizes, num_ranks=2)
    more = megamoe.workspace_bytes(**sizes | {"max_tokens_per_rank": 64}, num_ranks=2)
    assert 0 < few < more
    with pytest.raises(ValueError, match="hidden must be a positive multiple of 128"):
        megamoe.workspace_bytes(**sizes | {"hidden": 100}, num_ranks=2)


def test_weights_are_used_in_place_and_kept_alive():
    data = support.Layer()
    share = data.share(0, 1)
    layer = data.make(**share)
    want = data.expected()
    share["w2"].view(np.uint8)[:] = 0
    support.assert_close(layer(data.tokens, data.ids, data.weights), np.zeros_like(want))
    del share
    data.w2[:] = 0
    layer(data.tokens, data.ids, data.weights)
    layer.close()


def test_quantisers_follow_the_contract():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((7, 384)).astype(np.float32)
    values[3] = 0
    values[4, 5] = 1e6
    codes, scales = megamoe.quantize_tokens(values)
    want_codes, want_scales = oracle.quantise_rows(values)
    assert np.array_equal(codes.view(np.uint8), want_codes.view(np.uint8)) and np.array_equal(scales, want_scales)
    weights = rng.standard_normal((3, 320, 256)).astype(np.float32)
    codes, scales = megamoe.quantize_blocks(weights)
    assert codes.shape == weights.shape and scales.shape == (3, 3, 2)
    for e in range(3):
        restored = oracle.dequantise_blocks(codes[e], scales[e])
        assert np.abs(restored - weights[e]).max() <= np.abs(weights[e]).max() * 2**-4
