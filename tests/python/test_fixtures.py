"""Checkpoints that Hugging Face transformers wrote, and what its own MoE layer computed from them."""

import numpy as np
import pytest

import megamoe
import oracle
import support

NUM_EXPERTS = 16
# FP8 tokens cost 4.4% of a row on average, packed BF16 weights about 2% more: an emulation computed it beforehand.
LARGEST_ROW, MEAN_ROW = {"fp8": 7e-2, "bf16": 1.1e-1}, {"fp8": 5e-2, "bf16": 7.5e-2}


def experts(tensors, layer=1):
    """w13 and w2 of all experts, stacked, with their scales where the file has them."""

    def stack(part, what):
        names = [f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.{what}" for e in range(NUM_EXPERTS)]
        return np.stack([tensors[name] for name in names])

    w13 = np.concatenate([stack("gate", "weight"), stack("up", "weight")], axis=1)
    w2 = stack("down", "weight")
    if w13.dtype != oracle.E4M3:
        return (w13, None, w2, None)
    # One dimension where a side has one block: [1, 2] for gate and up (128 x 256), [2, 1] for down (256 x 128).
    gate = stack("gate", "weight_scale_inv").reshape(NUM_EXPERTS, 1, 2)
    up = stack("up", "weight_scale_inv").reshape(NUM_EXPERTS, 1, 2)
    w2_scale = stack("down", "weight_scale_inv").reshape(NUM_EXPERTS, 2, 1)
    return w13, np.concatenate([gate, up], axis=1), w2, w2_scale


def run(weights, tokens, ids, topk_weights, num_ranks):
    w13, w13_scale, w2, w2_scale = weights
    bounds = [len(tokens) * r // num_ranks for r in range(num_ranks + 1)]
    share = NUM_EXPERTS // num_ranks

    def rank(group):
        mine, rows = slice(group.rank * share, (group.rank + 1) * share), slice(*bounds[group.rank : group.rank + 2])
        with megamoe.MoELayer(
            group=group, top_k=4, max_tokens_per_rank=128, w13=w13[mine], w13_scale=w13_scale[mine], w2=w2[mine],
            w2_scale=w2_scale[mine], w13_layout="gate_up", scale_format="float32", num_threads=1,
        ) as layer:  # fmt: skip
            return layer(tokens[rows], ids[rows], topk_weights[rows])

    return np.concatenate(support.on_ranks(num_ranks, rank)).astype(np.float64)


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_fp8_checkpoint(num_ranks):
    folder = support.FIXTURES / "deepseek_v3_fp8"
    io = support.read_safetensors(folder / "moe_layer_io.safetensors")
    weights = experts(support.read_safetensors(folder / "model.safetensors"))
    output = run(weights, io["hidden_states"], io["topk_ids"], io["topk_weights"], num_ranks)
    errors = oracle.row_errors(output, io["routed_out_fp32_dequant_weights"])
    assert errors.max() < LARGEST_ROW["fp8"] and errors.mean() < MEAN_ROW["fp8"]
    assert errors.mean() > 1e-2, "FP8 tokens cost more than that: the comparison cannot be right"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_bf16_checkpoint_packed_by_quantize_blocks(num_ranks):
    folder = support.FIXTURES / "deepseek_v3"
    io = support.read_safetensors(folder / "moe_layer_io.safetensors")
    w13, _, w2, _ = experts(support.read_safetensors(folder / "model.safetensors"))
    packed = (*megamoe.quantize_blocks(w13), *megamoe.quantize_blocks(w2))
    output = run(packed, io["experts_in0"], io["experts_in1"], io["experts_in2"], num_ranks)
    errors = oracle.row_errors(output, io["experts_out"].astype(np.float64))
    assert errors.max() < LARGEST_ROW["bf16"] and errors.mean() < MEAN_ROW["bf16"]
