"""Checkpoint folders through Python: whole blocks against transformers, the arrays against the files, ranks, memory."""

import gc
import weakref

import numpy as np
import pytest

import megamoe
import oracle
import support

# What FP8 tokens and packed weights cost on these fixtures; an emulation computed it beforehand.
LARGEST_ROW, MEAN_ROW = 1.1e-1, 7.5e-2
BLOCKS = sorted(path.name for path in support.FIXTURES.iterdir() if path.is_dir() and path.name != "deepseek_v3_fp8")


def inputs_of(name):
    return support.read_safetensors(support.FIXTURES / name / "moe_layer_io.safetensors")


def test_there_are_blocks_of_every_family():
    assert len(BLOCKS) == 10 and all("output_fp32" in inputs_of(name) for name in BLOCKS)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_whole_block_agrees_with_transformers(name, num_ranks):
    io = inputs_of(name)
    tokens, want = io["hidden_states"], io["output_fp32"]
    bounds = [len(tokens) * r // num_ranks for r in range(num_ranks + 1)]

    def rank(group):
        checkpoint = megamoe.load_checkpoint(support.FIXTURES / name, 1, group)
        assert checkpoint.expert_end - checkpoint.expert_begin == checkpoint.num_experts // num_ranks
        with checkpoint.make_layer(max_tokens_per_rank=128, num_threads=1) as layer:
            return checkpoint.run(layer, tokens[slice(*bounds[group.rank : group.rank + 2])])

    output = np.concatenate(support.on_ranks(num_ranks, rank)).astype(np.float64)
    errors = oracle.row_errors(output, want)
    assert errors.max() < LARGEST_ROW and errors.mean() < MEAN_ROW
    assert errors.mean() > 1e-2, "FP8 tokens cost more than that: the comparison cannot be right"


@pytest.mark.parametrize("name", BLOCKS)
def test_the_router_chooses_as_transformers_did(name):
    io = inputs_of(name)
    checkpoint = megamoe.load_checkpoint(support.FIXTURES / name, 1)
    routing = checkpoint.route(io["hidden_states"])
    want_ids = io.get("topk_ids", io.get("experts_in1"))
    want_weights = io.get("topk_weights", io.get("experts_in2")).astype(np.float32)
    assert routing.topk_ids.dtype == np.int64 and routing.topk_ids.shape == want_ids.shape
    order, want_order = np.argsort(routing.topk_ids, axis=1), np.argsort(want_ids, axis=1)
    ids = np.take_along_axis(routing.topk_ids, order, 1)
    same = (ids == np.take_along_axis(want_ids, want_order, 1)).all(axis=1)
    assert same.mean() > 0.95, "only ties in the last bits may differ"
    weights = np.take_along_axis(routing.topk_weights, order, 1)[same]
    np.testing.assert_allclose(weights, np.take_along_axis(want_weights, want_order, 1)[same], rtol=2e-3, atol=1e-5)
    assert (routing.shared_weights is not None) == (name in ("qwen2_moe", "qwen3_5_moe"))


def test_float32_tokens_are_routed_like_their_bfloat16():
    checkpoint = megamoe.load_checkpoint(support.FIXTURES / "qwen2_moe", 1)
    tokens = inputs_of("qwen2_moe")["hidden_states"]
    first, second = checkpoint.route(tokens), checkpoint.route(tokens.astype(np.float32))
    for got, want in zip(first, second):
        np.testing.assert_array_equal(got, want)
    assert first.shared_weights.shape == (len(tokens), checkpoint.num_shared_experts)
    gate = support.read_safetensors(support.FIXTURES / "qwen2_moe" / "model.safetensors")[
        "model.layers.1.mlp.shared_expert_gate.weight"
    ]
    want = 1 / (1 + np.exp(-(tokens.astype(np.float64) @ gate.astype(np.float64).reshape(-1))))
    np.testing.assert_allclose(first.shared_weights, np.repeat(want[:, None], checkpoint.num_shared_experts, 1), 1e-5)


def test_attributes_say_what_config_json_says():
    c = megamoe.load_checkpoint(str(support.FIXTURES / "deepseek_v4_mxfp4"), 1)
    assert (c.hidden, c.intermediate, c.num_experts, c.top_k, c.layer) == (256, 128, 16, 3, 1)
    assert (c.expert_begin, c.expert_end, c.num_shared_experts, c.model_type) == (0, 16, 1, "deepseek_v4")
    assert (c.swiglu_clamp, c.routed_scaling, c.was_packed, c.weight_on_input) == (2.0, 1.5, True, False)
    assert (c.w13_layout, c.scale_format) == ("gate_up", "float32")
    assert c.router.scoring == "sqrtsoftplus" and c.router.scaling == 1.5 and c.router.has_correction_bias
    assert any("MXFP4 weight tensors expanded to E4M3" in note for note in c.notes)
    assert megamoe.load_checkpoint(support.FIXTURES / "mixtral", 1).swiglu_clamp is None
    assert "experts 0 to 15 of 16" in repr(c)


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_fp8_weights_are_the_files_bytes_without_a_copy(num_ranks):
    stored = support.read_safetensors(support.FIXTURES / "deepseek_v3_fp8" / "model.safetensors")

    def rank(group):
        return megamoe.load_checkpoint(support.FIXTURES / "deepseek_v3_fp8", 1, group)

    for r, c in enumerate(support.on_ranks(num_ranks, rank)):
        assert not c.was_packed and (c.expert_begin, c.expert_end) == (16 // num_ranks * r, 16 // num_ranks * (r + 1))
        assert c.w13.shape == (16 // num_ranks, 256, 256) and c.w13_scale.shape == (16 // num_ranks, 2, 1, 2)
        assert c.w2.shape == (16 // num_ranks, 256, 128) and c.w2_scale.shape == (16 // num_ranks, 2, 1)
        for expert in range(c.expert_begin, c.expert_end):
            local, stem = expert - c.expert_begin, f"model.layers.1.mlp.experts.{expert}."
            halves = (("gate_proj", c.w13[local, :128]), ("up_proj", c.w13[local, 128:]), ("down_proj", c.w2[local]))
            for name, codes in halves:
                assert codes.dtype == oracle.E4M3 and not codes.flags.owndata
                np.testing.assert_array_equal(codes.view(np.uint8), stored[f"{stem}{name}.weight"].view(np.uint8))
            for name, scales in (("gate_proj", c.w13_scale[local, 0]), ("down_proj", c.w2_scale[local])):
                np.testing.assert_array_equal(scales.reshape(-1), stored[f"{stem}{name}.weight_scale_inv"].reshape(-1))
        np.testing.assert_array_equal(
            c.shared_w2[0].view(np.uint8), stored["model.layers.1.mlp.shared_experts.down_proj.weight"].view(np.uint8)
        )


def test_memory_lives_as_long_as_an_array_or_a_layer():
    checkpoint = megamoe.load_checkpoint(support.FIXTURES / "mixtral", 1)
    owner = weakref.ref(checkpoint._owner)
    tokens = inputs_of("mixtral")["hidden_states"]
    routing = checkpoint.route(tokens)
    layer, scales = checkpoint.make_layer(max_tokens_per_rank=64, num_threads=1), checkpoint.w2_scale
    want = checkpoint.run(layer, tokens)
    del checkpoint
    gc.collect()
    assert owner() is not None
    np.testing.assert_array_equal(layer(tokens, routing.topk_ids, routing.topk_weights), want)
    layer.close()
    del layer
    gc.collect()
    assert owner() is not None and np.isfinite(scales).all()
    del scales
    gc.collect()
    assert owner() is None


def test_routed_experts_alone_have_no_router():
    checkpoint = megamoe.load_checkpoint(support.FIXTURES / "deepseek_v3", 1, routed_only=True)
    assert checkpoint.router is None and checkpoint.num_shared_experts == 0 and checkpoint.shared_w13 is None
    io = inputs_of("deepseek_v3")
    with pytest.raises(NotImplementedError, match="load the layer whole"):
        checkpoint.route(io["hidden_states"])
    with checkpoint.make_layer(max_tokens_per_rank=128, num_threads=1) as layer:
        errors = oracle.row_errors(
            layer(io["experts_in0"], io["experts_in1"], io["experts_in2"]), io["experts_out"].astype(np.float64)
        )
    assert errors.max() < LARGEST_ROW and errors.mean() < MEAN_ROW


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x[:, :128], r"hidden_states must have shape \[40, 256\], got \[40, 128\]"),
        (lambda x: x[0], r"hidden_states must have shape"),
        (lambda x: x[::2], "hidden_states must be dense"),
        (lambda x: x.astype(np.int64), "hidden_states must be bfloat16 or float32, got int64"),
        (lambda x: x.astype(np.float64), "hidden_states must have one of the dtypes"),
    ],
)
def test_tokens_that_cannot_be_routed_stop_every_rank(change, sentence):
    tokens = inputs_of("mixtral")["hidden_states"]

    def rank(group):
        checkpoint = megamoe.load_checkpoint(support.FIXTURES / "mixtral", 1, group)
        with checkpoint.make_layer(max_tokens_per_rank=64, num_threads=1, timeout=30) as layer:
            try:
                checkpoint.run(layer, change(tokens) if group.rank == 1 else tokens)
            except megamoe.MegamoeError as error:
                kept = error
            return kept, checkpoint.run(layer, tokens)

    (first, output), (second, _) = support.on_ranks(2, rank)
    assert isinstance(first, megamoe.PeerFailedError) or "rank 1" in str(first)
    with pytest.raises(ValueError, match=sentence):
        raise second
    assert oracle.row_errors(output, inputs_of("mixtral")["output_fp32"]).max() < LARGEST_ROW


def test_no_tokens_at_all():
    checkpoint = megamoe.load_checkpoint(support.FIXTURES / "qwen2_moe", 1)
    tokens = inputs_of("qwen2_moe")["hidden_states"][:0]
    routing = checkpoint.route(tokens)
    assert [part.shape for part in routing] == [(0, 2), (0, 2), (0, 3)]
    with checkpoint.make_layer(max_tokens_per_rank=4, num_threads=1) as layer:
        assert checkpoint.run(layer, tokens).shape == (0, 128)


def test_layer_options_that_the_checkpoint_has_are_refused():
    checkpoint = megamoe.load_checkpoint(support.FIXTURES / "glm4_moe", 1)
    with pytest.raises(ValueError, match="routed_scaling, top_k must be left out, since the checkpoint has it"):
        checkpoint.make_layer(max_tokens_per_rank=4, top_k=2, routed_scaling=1.5)
    with pytest.raises(ValueError, match=r"rank 0 of 2 has the experts 0 to 3, got 0 to 7; load the checkpoint with"):
        support.on_ranks(2, lambda group: checkpoint.make_layer(max_tokens_per_rank=4, group=group, timeout=5))


def test_weights_for_a_gpu_are_copied_by_whom_one_names(monkeypatch):
    checkpoint = megamoe.load_checkpoint(support.FIXTURES / "deepseek_v3", 1)
    monkeypatch.setattr(megamoe.MoELayer, "on_cuda", property(lambda layer: True))
    monkeypatch.setattr("megamoe._checkpoint._any_library", lambda: None)
    with pytest.raises(NotImplementedError, match="must be copied to GPU 0, which needs torch or CuPy.*to_device"):
        checkpoint.make_layer(max_tokens_per_rank=128)
    copied = []

    def copy(array, device):
        copied.append((array.dtype.name, device))
        return array.copy()

    with checkpoint.make_layer(max_tokens_per_rank=128, to_device=copy, num_threads=1) as layer:
        io = inputs_of("deepseek_v3")
        assert oracle.row_errors(checkpoint.run(layer, io["hidden_states"]), io["output_fp32"]).max() < LARGEST_ROW
    assert sorted(copied) == [("float32", 0)] * 4 + [("uint8", 0)] * 4
