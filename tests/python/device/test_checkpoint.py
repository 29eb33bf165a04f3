"""A checkpoint's layer on a GPU: weights copied there by torch, the router on the host, against transformers' block."""

import json
import threading
from pathlib import Path

import pytest
import torch
from device_support import on_ranks

import megamoe

np = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
LARGEST_ROW, MEAN_ROW = 1.1e-1, 7.5e-2  # of FP8 tokens and packed weights, computed beforehand


def read_safetensors(path):
    raw = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + header_bytes]).items():
        if name != "__metadata__":
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            tensors[name] = torch.frombuffer(raw[begin:end], dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe_fp8", "qwen2_moe", "deepseek_v4_mxfp4"])
def test_a_checkpoints_block_on_one_gpu(name, num_ranks):
    io = read_safetensors(FIXTURES / name / "moe_layer_io.safetensors")
    tokens, want = io["hidden_states"], io["output_fp32"].double()
    bounds = [len(tokens) * r // num_ranks for r in range(num_ranks + 1)]

    ready = threading.Barrier(num_ranks)

    def rank(group):
        checkpoint = megamoe.load_checkpoint(FIXTURES / name, 1, group)
        mine = tokens[slice(*bounds[group.rank : group.rank + 2])]
        routing = [None if part is None else torch.from_numpy(part).cuda() for part in checkpoint.route(mine)]
        on_gpu = mine.cuda()
        with checkpoint.make_layer(max_tokens_per_rank=128) as layer:
            assert layer.on_cuda
            # A call of one rank holds the GPU until all ranks call: what others still bring there could wait for it.
            ready.wait(60)
            return layer(on_gpu, routing[0], routing[1], shared_weights=routing[2]).cpu()

    output = torch.cat(on_ranks(megamoe.cuda_thread_group([0] * num_ranks), rank)).double()
    errors = (output - want).norm(dim=1) / want.norm(dim=1)
    assert errors.max() < LARGEST_ROW and errors.mean() < MEAN_ROW
    assert errors.mean() > 1e-2, "FP8 tokens cost more than that: the comparison cannot be right"
