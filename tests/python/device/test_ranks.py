"""Several ranks: threads of one process on one GPU, and torch.distributed groups as rendezvous."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from device_support import Layer, assert_close, on_ranks, same_bits

import megamoe
import megamoe.torch

gpu = pytest.mark.gpu


@gpu
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_of_one_process_on_one_gpu(num_ranks):
    data = Layer(num_tokens=32)
    with data.make() as layer:
        alone = layer(data.tokens, data.ids, data.weights)
    rows = 32 // num_ranks

    def rank(group):
        mine = slice(group.rank * rows, group.rank * rows + rows)
        counts = torch.zeros(data.num_experts // num_ranks, dtype=torch.int32, device="cuda")
        with data.make(group) as layer:
            for _ in range(5):
                output = megamoe.torch.moe_forward(
                    layer, data.tokens[mine], data.ids[mine], data.weights[mine], cumulative_recv_counts=counts
                )
            torch.cuda.current_stream().synchronize()
            layer.finish()
            return output.clone(), counts.cpu()

    results = on_ranks(megamoe.cuda_thread_group([0] * num_ranks), rank)
    torch.cuda.synchronize()
    assert same_bits(torch.cat([output for output, _ in results]), alone)
    want = 5 * torch.bincount(data.ids.flatten().cpu(), minlength=data.num_experts)
    assert torch.equal(torch.cat([counts for _, counts in results]).long(), want)


@gpu
def test_ranks_on_one_stream_are_told():
    data = Layer(num_tokens=8)

    def rank(group):
        with data.make(group) as layer:
            try:
                megamoe.torch.moe_forward(layer, data.tokens, data.ids, data.weights)
                layer.finish()
            except megamoe.MegamoeError as error:
                return str(error)

    told = megamoe.run_ranks(megamoe.cuda_thread_group([0, 0]), rank)
    assert all("got the same stream at ranks 0 and 1" in (text or "") for text in told), told


@gpu
def test_a_rank_with_a_wrong_id_fails_the_call_on_both():
    data = Layer()

    def rank(group):
        ids = data.ids.clone()
        if group.rank == 1:
            ids[2, 0] = 70
        with data.make(group) as layer:
            try:
                layer(data.tokens, ids, data.weights)
                error = None
            except megamoe.MegamoeError as raised:
                error = raised
            return error, layer(data.tokens, data.ids, data.weights)

    torch.cuda.synchronize()
    for error, output in on_ranks(megamoe.cuda_thread_group([0, 0]), rank):
        assert error is not None and "got 70 at rank 1, token 2, slot 0" in str(error)
        torch.cuda.synchronize()
        assert_close(output, data.expected())


@gpu
def test_torch_distributed_with_one_process():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = "29541"
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    try:
        group = megamoe.torch.process_group()
        assert (group.rank, group.num_ranks) == (0, 1)
        data = Layer()
        with data.make(group) as layer:
            assert layer.on_cuda
            assert_close(layer(data.tokens, data.ids, data.weights), data.expected())
    finally:
        dist.destroy_process_group()


GLOO = """
import sys, torch, torch.distributed as dist
sys.path[:0] = {path!r}
import megamoe.torch
from device_support import Layer, assert_close
dist.init_process_group("gloo", init_method="file://{folder}/store", rank={rank}, world_size=2)
group = megamoe.torch.process_group()
assert (group.rank, group.num_ranks) == ({rank}, 2)
data = Layer(device={device!r}, num_tokens=10)
mine = slice(5 * {rank}, 5 * {rank} + 5)
with data.make(group) as layer:
    assert_close(layer(data.tokens[mine], data.ids[mine], data.weights[mine]), data.expected()[mine])
dist.destroy_process_group()
"""


def test_torch_distributed_with_two_processes_on_the_host(tmp_path):
    scripts = [GLOO.format(path=[p for p in sys.path if p], folder=tmp_path, rank=r, device="cpu") for r in range(2)]
    processes = [subprocess.Popen([sys.executable, "-c", script]) for script in scripts]
    assert [process.wait(120) for process in processes] == [0, 0]
