"""What serving engines need beside the plain layer: expert maps, shared experts, scaling, absent ranks, receive counts,
prepared weights, input views."""

import dataclasses

import numpy as np
import pytest

import megamoe
import oracle
import support

# Two placements of 8 logical experts on 10 physical ones, 5 a rank: physical -> logical.
MAP_A = [0, 1, 2, 3, 4, 5, 6, 7, 0, 3]
MAP_B = [3, 5, 0, 7, 1, 2, 4, 6, 3, 0]


def logical_to_physical(placement):
    """[8, 2] int32: the copies of each logical expert, ended by -1."""
    table = np.full((8, 2), -1, np.int32)
    for logical in range(8):
        copies = [physical for physical, held in enumerate(placement) if held == logical]
        table[logical, : len(copies)] = copies
    return table


def placed(data, placement):
    """The weights of all physical experts."""
    names = ("w13", "w13_scale", "w2", "w2_scale")
    return {name: np.ascontiguousarray(getattr(data, name)[placement]) for name in names}


def on_rank(weights, group):
    half = len(weights["w13"]) // group.num_ranks
    return {name: array[group.rank * half :][:half] for name, array in weights.items()}


STATED = {"w13_layout": "gate_up", "scale_format": "float32"}


def test_a_map_is_switched_between_calls_and_each_call_sees_one_whole():
    data = support.Layer(num_tokens=16)
    want = data.expected()
    places = {
        "A": (placed(data, MAP_A), logical_to_physical(MAP_A)),
        "B": (placed(data, MAP_B), logical_to_physical(MAP_B)),
    }

    def rank(group):
        layer = megamoe.MoELayer(
            group=group, hidden=256, intermediate=128, num_experts=10, num_logical_experts=8, top_k=2,
            max_tokens_per_rank=16, num_threads=1, timeout=60,
        )  # fmt: skip
        sets = {
            name: layer.prepare_weights(**on_rank(weights, group), **STATED) for name, (weights, _) in places.items()
        }
        outputs = []
        for call in range(20):
            name = "AB"[call % 2]
            layer.use_weights(sets[name])
            outputs.append(layer(data.tokens, data.ids, data.weights, expert_map=places[name][1]))
        layer.close()
        return outputs

    for outputs in support.on_ranks(2, rank):
        for output in outputs:
            support.assert_close(output, want)


def test_a_logical_expert_beyond_the_map_is_refused_and_one_without_copies_is_masked():
    data = support.Layer(num_experts=8)
    table = logical_to_physical(MAP_A)[:, :1].copy()
    layer = megamoe.MoELayer(
        **placed(data, MAP_A), **STATED, top_k=2, max_tokens_per_rank=12, num_logical_experts=8, num_threads=1
    )
    with layer:
        ids = data.ids.copy()
        ids[4, 0] = 8
        with pytest.raises(ValueError, match="got 8 at rank 0, token 4, slot 0"):
            layer(data.tokens, ids, data.weights, expert_map=table)
        with pytest.raises(ValueError, match="expert_map must be given"):
            layer(data.tokens, data.ids, data.weights)
        with pytest.raises(ValueError, match="expert_map"):
            layer(data.tokens, data.ids, data.weights, expert_map=np.where(table == 3, 10, table))
        table[3] = -1
        masked = np.where(data.ids == 3, -1, data.ids)
        want = oracle.moe(data.tokens, masked, data.weights, data)
        support.assert_close(layer(data.tokens, data.ids, data.weights, expert_map=table), want)
        # What is masked may be made up for by the other weights.
        share = np.where(masked < 0, 0, data.weights)
        factor = data.weights.sum(1) / np.where(share.sum(1) == 0, 1, share.sum(1))
        want = oracle.moe(data.tokens, masked, (share * factor[:, None]).astype(np.float32), data)
        got = layer(data.tokens, data.ids, data.weights, expert_map=table, renormalize=True)
        support.assert_close(got, want)


def test_ids_that_are_physical_already_are_not_mapped_again():
    data = support.Layer()
    with data.make() as layer:
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())
        with pytest.raises(ValueError, match="expert_map"):
            layer(data.tokens, data.ids, data.weights, expert_map=np.arange(8, dtype=np.int32))


def shared_part(data, weights=None):
    """What the shared experts give every token."""
    ids = np.tile(np.arange(data.num_experts), (data.num_tokens, 1))
    weights = np.ones(ids.shape, np.float32) if weights is None else weights
    return oracle.moe(data.tokens, ids, weights, data)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_shared_experts_are_added_once_whatever_the_number_of_ranks(num_ranks):
    data = support.Layer(num_tokens=10)
    shared = support.Layer(num_tokens=10, num_experts=2, seed=9)
    shared.tokens = data.tokens
    gates = np.random.default_rng(3).random((10, 2), dtype=np.float32)
    extra = {f"shared_{name}": getattr(shared, name) for name in ("w13", "w13_scale", "w2", "w2_scale")}
    bounds = [10 * r // num_ranks for r in range(num_ranks + 1)]

    def rank(group):
        rows = slice(bounds[group.rank], bounds[group.rank + 1])
        with data.make(group, num_shared_experts=2, routed_scaling=2.5, **extra) as layer:
            arguments = data.tokens[rows], data.ids[rows], data.weights[rows]
            return layer(*arguments), layer(*arguments, shared_weights=gates[rows])

    results = support.on_ranks(num_ranks, rank)
    routed = oracle.moe(data.tokens, data.ids, data.weights * np.float32(2.5), data)
    plain = np.concatenate([result[0] for result in results])
    gated = np.concatenate([result[1] for result in results])
    support.assert_close(plain, routed + shared_part(shared))
    support.assert_close(gated, routed + shared_part(shared, gates))


def test_routed_scaling_is_applied_once():
    """(a) raw weights and a scaling of 2.5, (b) weights times 2.5, (c) a scaling of 1.5."""
    data = support.Layer()
    tripled = (data.weights * np.float32(2.5)).astype(np.float32)
    with data.make(routed_scaling=2.5) as layer:
        a = layer(data.tokens, data.ids, data.weights)
    with data.make() as layer:
        b = layer(data.tokens, data.ids, tripled)
    with data.make(routed_scaling=1.5) as layer:
        c = layer(data.tokens, data.ids, data.weights)
    assert np.array_equal(a.view(np.uint16), b.view(np.uint16))
    support.assert_close(c, oracle.moe(data.tokens, data.ids, data.weights * np.float32(1.5), data))
    with pytest.raises(ValueError, match="routed_scaling must not be 0"):
        data.make(routed_scaling=0.0)
    with pytest.raises(ValueError, match="routed_scaling"):
        data.make(routed_scaling=float("nan"))


def test_ranks_can_be_left_out_of_calls():
    data = support.Layer()

    def rank(group):
        layer = data.make(group)
        both = layer(data.tokens, data.ids, data.weights)
        alone = None
        if group.rank == 0:
            alone = layer(data.tokens, data.ids, data.weights, active_ranks=[0])
        layer.reset()
        again = layer(data.tokens, data.ids, data.weights)
        layer.close()
        return both, alone, again

    (both, alone, again), (_, _, other) = support.on_ranks(2, rank)
    want = data.expected()
    for output in (both, again, other):
        support.assert_close(output, want)
    near = np.where(data.ids >= 4, -1, data.ids)
    support.assert_close(alone, oracle.moe(data.tokens, near, data.weights, data))
    with data.make() as layer:
        for ranks, sentence in (([], "at least one rank"), ([128], "got 128"), ([-1], "got -1"), ([1], "active_ranks")):
            with pytest.raises(ValueError, match=sentence):
                layer(data.tokens, data.ids, data.weights, active_ranks=ranks)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_receive_counts_grow(dtype):
    data = support.Layer()
    data.ids[2, 1] = -1

    def rank(group):
        counts = np.arange(4, dtype=dtype) + 100
        with data.make(group) as layer:
            for _ in range(3):
                layer(data.tokens, data.ids, data.weights, cumulative_recv_counts=counts)
        return counts

    want = 3 * 2 * np.bincount(data.ids[data.ids >= 0], minlength=8)
    got = np.concatenate(support.on_ranks(2, rank))
    assert np.array_equal(got, want + np.tile(np.arange(4) + 100, 2))


def test_counts_of_a_refused_call_stay():
    data = support.Layer()
    counts = np.zeros(8, np.int32)
    wrong = data.ids.copy()
    wrong[0, 0] = 99
    with data.make() as layer:
        with pytest.raises(ValueError, match="got 99"):
            layer(data.tokens, wrong, data.weights, cumulative_recv_counts=counts)
        assert not counts.any()
        with pytest.raises(ValueError, match="cumulative_recv_counts"):
            layer(data.tokens, data.ids, data.weights, cumulative_recv_counts=counts[:-1])


def test_prepared_weights_serve_their_layer_only():
    first, second = support.Layer(seed=1), support.Layer(seed=2)
    with first.make() as layer, first.make() as other:
        sets = [layer.prepare_weights(**one.share(0, 1), **STATED) for one in (first, second)]
        for _ in range(2):
            for one, weights in zip((first, second), sets, strict=True):
                layer.use_weights(weights)
                want = dataclasses.replace(one)
                want.tokens, want.ids, want.weights = first.tokens, first.ids, first.weights
                support.assert_close(layer(first.tokens, first.ids, first.weights), want.expected())
        with pytest.raises(ValueError, match="must have been prepared by this layer, got another layer's"):
            other.use_weights(sets[0])
        del sets
        support.assert_close(layer(first.tokens, first.ids, first.weights), want.expected())


def test_weights_that_are_refused_leave_the_old_ones_in_use():
    data = support.Layer()
    with data.make() as layer:
        with pytest.raises(ValueError, match="w2 must be given"):
            layer.load_weights(**data.share(0, 1) | {"w2": None}, **STATED)
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


def test_a_clamp_for_one_call():
    data = support.Layer()
    with data.make(swiglu_clamp=0.5) as layer:
        arguments = data.tokens, data.ids, data.weights
        support.assert_close(layer(*arguments), data.expected(clamp=0.5))
        support.assert_close(layer(*arguments, swiglu_clamp=0.25), data.expected(clamp=0.25))
        support.assert_close(layer(*arguments, swiglu_clamp=np.inf), data.expected())
        support.assert_close(layer(*arguments), data.expected(clamp=0.5))
        for clamp in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="swiglu_clamp must be greater than 0"):
                layer(*arguments, swiglu_clamp=clamp)


def test_input_views_hold_tokens_without_a_copy():
    data = support.Layer()
    codes, scales = oracle.quantise_rows(data.tokens)
    with data.make() as layer:
        x, x_scale = layer.input_views()
        assert (x.dtype, x.shape, x_scale.dtype, x_scale.shape) == (oracle.E4M3, (12, 256), np.float32, (12, 2))
        x[:7], x_scale[:7] = codes[:7], scales[:7]
        output = layer(x[:7], data.ids[:7], data.weights[:7], hidden_states_scale=x_scale[:7], scale_format="float32")
        support.assert_close(output, data.expected()[:7])
        with pytest.raises(ValueError, match="must both be the layer's input views"):
            layer(x[:7], data.ids[:7], data.weights[:7], hidden_states_scale=scales[:7], scale_format="float32")


def test_streams_are_for_gpus():
    data = support.Layer()
    with data.make() as layer:
        assert not layer.on_cuda
        layer.finish()
        with pytest.raises(ValueError, match="stream must be left out for arrays in host memory"):
            layer(data.tokens, data.ids, data.weights, stream=0)
        with pytest.raises(ValueError, match="stream must be a cudaStream_t"):
            layer(data.tokens, data.ids, data.weights, stream="default")
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


def test_devices_are_named_and_a_gpu_that_is_not_here_is_an_error():
    sizes = {"hidden": 256, "intermediate": 128, "num_experts": 8, "top_k": 2, "max_tokens_per_rank": 4}
    megamoe.MoELayer(**sizes, device="cpu").close()
    with pytest.raises(ValueError, match="device must be cpu, cuda, cuda:N or a number, got 'tpu'"):
        megamoe.MoELayer(**sizes, device="tpu")
    with pytest.raises(ValueError, match="device must be left out where group is given"):
        megamoe.MoELayer(**sizes, device="cpu", group=megamoe.thread_group(1)[0])
    with pytest.raises((NotImplementedError, ValueError), match="CUDA|GPU"):
        megamoe.MoELayer(**sizes, device="cuda:57")
    with pytest.raises((NotImplementedError, ValueError), match="CUDA|GPU|devices"):
        megamoe.cuda_thread_group([57, 57])
    with pytest.raises(ValueError, match="devices must be indices of GPUs"):
        megamoe.cuda_thread_group([-1])


def test_fused_experts_with_a_map_of_global_experts():
    """A process that holds experts 2, 5 and 7 of 8: the others contribute nothing here."""
    data = support.Layer()
    held = [2, 5, 7]
    table = np.full(8, -1, np.int32)
    table[held] = np.arange(3)
    output = megamoe.fused_experts(
        data.tokens, data.w13[held], data.w2[held], data.weights, data.ids, w1_scale=data.w13_scale[held],
        w2_scale=data.w2_scale[held], expert_map=table, global_num_experts=8,
    )  # fmt: skip
    near = np.where(np.isin(data.ids, held), data.ids, -1)
    support.assert_close(output, oracle.moe(data.tokens, near, data.weights, data))
    megamoe.release_fused_experts()
