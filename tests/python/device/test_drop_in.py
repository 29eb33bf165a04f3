"""A program written for DeepGEMM's SM90 Mega MoE, behind the alias: smoke, token bands, shapes, edges, reuse, graphs.

Everything here goes through the names that such a program imports; calc_diff below 0.01 is what it calls correct.
"""

import math
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from device_support import Layer, quantise_blocks, quantise_rows, reference

import megamoe.compat

gpu = pytest.mark.gpu
TOLERANCE = 0.01


def case(tokens, hidden=512, intermediate=512, experts=8, top_k=2, **more):
    return {
        "tokens": tokens, "hidden": hidden, "intermediate": intermediate, "experts": experts, "top_k": top_k,
    } | more  # fmt: skip


CASES = {
    "smoke": case(64),
    **{f"band {t} tokens": case(t, 1024, 1024) for t in (64, 256, 512, 2048)},
    **{f"band {t} tokens, top-8 of 32": case(t, 512, 2048, 32, 8) for t in (16, 64, 260, 1024)},
    "band 512 tokens, top-6 of 32": case(512, 512, 2048, 32, 6),
    **{
        f"shape {h} x {i}, top-{k}": case(128, h, i, top_k=k)
        for h in (512, 2048)
        for i in (512, 2048)
        for k in (1, 2, 4)
    },
    "shape with intermediate beyond 4,096": case(16, 512, 4224),
    "shape of flash, 32 experts": case(128, 4096, 2048, 32, 6),
    "shape of pro, 48 experts": case(128, 7168, 3072, 48, 6),
    "shape of pro, 256 tokens": case(256, 7168, 3072, 48, 6),
    "shape of flash, top-8 of 24": case(72, 4096, 2048, 24, 8),
    "shape of pro, top-8 of 32": case(128, 7168, 3072, 32, 8),
    **{f"edge {share:.0%} masked": case(128, masked=share) for share in (0.0, 0.3, 0.7, 1.0)},
    **{f"edge clamp {clamp}": case(128, clamp=clamp) for clamp in (1.0, 10.0, math.inf)},
    **{f"edge fast_math {fast}": case(128, fast_math=fast) for fast in (True, False)},
    "edge no tokens": case(0),
    "edge one token": case(1),
    "edge a full buffer": case(128),
}  # fmt: skip


@pytest.fixture(scope="module")
def world():
    """One rank of torch.distributed, as such a program starts it, and the modules it imports."""
    os.environ["MASTER_PORT"] = "29542"
    os.environ.pop("RANK", None)
    os.environ.pop("WORLD_SIZE", None)
    megamoe.compat.install_alias()
    import deep_gemm
    from deep_gemm.utils.dist import init_dist

    rank, num_ranks, group = init_dist(0, 1)
    assert (rank, num_ranks) == (0, 1)
    yield deep_gemm, group
    torch.set_default_device("cpu")
    dist.destroy_process_group()
    megamoe.compat.remove_alias()


class Inputs:
    """Weights in natural order, transformed ones, and what is copied into the buffer."""

    def __init__(self, deep_gemm, cfg, seed):
        torch.manual_seed(seed)
        e, h, i, t = cfg["experts"], cfg["hidden"], cfg["intermediate"], cfg["tokens"]
        self.w13, self.w13_scale = quantise_blocks(torch.randn(e, 2 * i, h, device="cuda").bfloat16() * 0.05)
        self.w2, self.w2_scale = quantise_blocks(torch.randn(e, h, i, device="cuda").bfloat16() * 0.05)
        self.l1, self.l2 = deep_gemm.transform_weights_for_mega_moe_sm90(
            (self.w13, self.w13_scale), (self.w2, self.w2_scale)
        )
        self.routing(cfg, t)
        x = torch.randn(t, h, device="cuda").bfloat16()
        self.x, self.x_sf = deep_gemm.utils.per_token_cast_to_fp8(x, use_ue8m0=False, gran_k=128)

    def routing(self, cfg, tokens):
        scores = torch.randn(tokens, cfg["experts"], device="cuda")
        self.weights, self.ids = torch.topk(scores, cfg["top_k"], dim=-1, sorted=False)
        mask = torch.rand(self.ids.shape, device="cuda") < cfg.get("masked", 0.0)
        self.ids.masked_fill_(mask, -1)
        self.weights.masked_fill_(mask, 0)

    def fill(self, buffer):
        t = self.x.shape[0]
        buffer.x[:t].copy_(self.x)
        buffer.x_sf[:t].copy_(self.x_sf)
        buffer.topk_idx[:t].copy_(self.ids)
        buffer.topk_weights[:t].copy_(self.weights)

    def expected(self, clamp):
        return reference(self.x, self.x_sf, self.ids, self.weights, self, clamp if math.isfinite(clamp) else None)


@gpu
@pytest.mark.parametrize("name", CASES)
def test_layered(world, name):
    deep_gemm, group = world
    from deep_gemm.testing import calc_diff, get_arch_major

    assert get_arch_major() == 9
    cfg = CASES[name]
    inputs = Inputs(deep_gemm, cfg, seed=sum(name.encode()))
    buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(
        group, cfg["experts"], max(64, cfg["tokens"]), cfg["top_k"], cfg["hidden"], cfg["intermediate"]
    )
    try:
        counts = torch.zeros(cfg["experts"], dtype=torch.int, device="cuda")
        inputs.fill(buffer)
        y = torch.full((cfg["tokens"], cfg["hidden"]), math.nan, dtype=torch.bfloat16, device="cuda")
        clamp = cfg.get("clamp", 10.0)
        deep_gemm.fp8_mega_moe(
            y, inputs.l1, inputs.l2, buffer, cumulative_local_expert_recv_stats=counts, recipe=(128, 128, 128),
            activation="swiglu", activation_clamp=clamp if math.isfinite(clamp) else None,
            fast_math=cfg.get("fast_math", True),
        )  # fmt: skip
        torch.cuda.synchronize()
        want = inputs.expected(clamp)
        assert torch.isfinite(y).all() and y.shape == want.shape
        assert calc_diff(y, want) < TOLERANCE
        assert torch.equal(
            counts.cpu().long(), torch.bincount(inputs.ids[inputs.ids >= 0].cpu(), minlength=counts.numel())
        )
    finally:
        buffer.destroy()


@gpu
@pytest.mark.parametrize("tokens", [0, 1, 31, 64, 127])
def test_a_buffer_is_used_again_and_again_and_in_a_graph(world, tokens):
    deep_gemm, group = world
    cfg = case(tokens, experts=4)
    inputs = Inputs(deep_gemm, cfg, seed=tokens)
    buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, 4, 128, 2, 512, 512)
    counts = torch.arange(17, 21, dtype=torch.int, device="cuda")
    want_counts = counts.cpu().long()
    y = torch.empty((tokens, 512), dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()

    def launch():
        deep_gemm.fp8_mega_moe(
            y, inputs.l1, inputs.l2, buffer, cumulative_local_expert_recv_stats=counts, activation_clamp=10.0
        )

    def prepare(masked):
        inputs.routing(cfg | {"masked": 1.0 if masked else 0.0}, tokens)
        inputs.fill(buffer)
        y.fill_(math.nan)
        torch.cuda.synchronize()

    def check():
        nonlocal want_counts
        torch.cuda.synchronize()
        want_counts = want_counts + torch.bincount(inputs.ids[inputs.ids >= 0].cpu(), minlength=4)
        assert torch.equal(counts.cpu().long(), want_counts)
        assert torch.isfinite(y).all() and deep_gemm.testing.calc_diff(y, inputs.expected(10.0)) < TOLERANCE

    try:
        for masked in (False, True, False):
            prepare(masked)
            with torch.cuda.stream(stream):
                launch()
            check()
        prepare(False)
        with torch.cuda.graph(graph, stream=stream):
            launch()
        torch.cuda.synchronize()
        assert torch.equal(counts.cpu().long(), want_counts), "capturing must not run the call"
        for masked in (False, True, False):
            prepare(masked)
            graph.replay()
            check()
    finally:
        graph.reset()
        buffer.destroy()


@gpu
def test_one_buffer_serves_many_layers_of_a_model_in_one_graph(world):
    deep_gemm, group = world
    cfg = case(32)
    layers = [Inputs(deep_gemm, cfg, seed=seed) for seed in range(6)]
    buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, 8, 128, 2, 512, 512)
    ys = [torch.empty((32, 512), dtype=torch.bfloat16, device="cuda") for _ in layers]

    def run():
        for inputs, y in zip(layers, ys, strict=True):
            inputs.fill(buffer)
            deep_gemm.fp8_mega_moe(y, inputs.l1, inputs.l2, buffer, activation_clamp=10.0)

    try:
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for y in ys:
            y.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        for inputs, y in zip(layers, ys, strict=True):
            assert deep_gemm.testing.calc_diff(y, inputs.expected(10.0)) < TOLERANCE
        graph.reset()
    finally:
        buffer.destroy()


@gpu
def test_buffers_give_their_memory_back(world):
    deep_gemm, group = world
    free = []
    for round_ in range(12):
        buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, 8, 1024, 2, 2048, 512)
        buffer.destroy()
        torch.cuda.empty_cache()
        if round_ in (4, 11):
            torch.cuda.synchronize()
            free.append(torch.cuda.mem_get_info()[0])
    assert free[0] - free[1] <= 2 << 20


@gpu
def test_what_this_path_does_not_do_is_refused(world):
    deep_gemm, group = world
    inputs = Inputs(deep_gemm, case(4), seed=0)
    with pytest.raises(NotImplementedError, match="use_fp8_dispatch must be True, got False"):
        deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, 8, 128, 2, 512, 512, use_fp8_dispatch=False)
    with pytest.raises(ValueError, match="hidden must be a positive multiple of 128"):
        deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, 8, 128, 2, 500, 512)
    buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, 8, 100, 2, 512, 512)
    assert buffer.num_max_tokens_per_rank == 128
    y = torch.empty((4, 512), dtype=torch.bfloat16, device="cuda")
    try:
        for change, sentence in (
            ({"recipe": (1, 1, 32)}, "recipe must be"),
            ({"activation": "situ"}, "activation must be 'swiglu'"),
        ):
            with pytest.raises(NotImplementedError, match=sentence):
                deep_gemm.fp8_mega_moe(y, inputs.l1, inputs.l2, buffer, **change)
        with pytest.raises(ValueError, match="output must be bfloat16"):
            deep_gemm.fp8_mega_moe(y.half().float(), inputs.l1, inputs.l2, buffer)
        with pytest.raises(ValueError, match="swiglu_clamp must be greater than 0"):
            deep_gemm.fp8_mega_moe(y, inputs.l1, inputs.l2, buffer, activation_clamp=0.0)
    finally:
        buffer.destroy()
    with pytest.raises(ValueError, match="the buffer must be alive"):
        deep_gemm.fp8_mega_moe(y, inputs.l1, inputs.l2, buffer)


def test_the_transform_takes_turns_of_8_rows():
    from megamoe.compat import deep_gemm

    data = Layer(hidden=128, intermediate=128, num_experts=2, device="cpu")
    (codes, scale), second = deep_gemm.transform_weights_for_mega_moe_sm90(
        (data.w13, data.w13_scale), (data.w2, data.w2_scale)
    )
    rows = torch.arange(256).view(2, 16, 8)
    order = torch.stack([rows[0], rows[1]], 1).flatten()
    assert torch.equal(codes.view(torch.uint8), data.w13.view(torch.uint8)[:, order])
    assert scale is data.w13_scale and second[0] is data.w2


def test_casts_and_differences():
    from megamoe.compat.deep_gemm.testing import calc_diff
    from megamoe.compat.deep_gemm.utils import align, ceil_div, per_block_cast_to_fp8, per_token_cast_to_fp8

    assert (ceil_div(257, 128), align(257, 128)) == (3, 384)
    x = torch.randn(5, 300)
    codes, scales = per_token_cast_to_fp8(x, use_ue8m0=False)
    assert (codes.shape, scales.shape, codes.dtype) == (x.shape, (5, 3), torch.float8_e4m3fn)
    assert calc_diff(codes.float() * scales.repeat_interleave(128, 1)[:, :300], x) < 1e-3
    want, want_scales = quantise_rows(x[:, :256])
    assert torch.equal(scales[:, :2], want_scales) and torch.equal(
        codes[:, :256].view(torch.uint8), want.view(torch.uint8)
    )
    none, no_scales = per_token_cast_to_fp8(x[:0], use_ue8m0=False)
    assert (none.shape, no_scales.shape) == ((0, 300), (0, 3))
    codes, scales = per_block_cast_to_fp8(x, use_ue8m0=False)
    assert (codes.shape, scales.shape) == (x.shape, (1, 3))
    assert calc_diff(codes.float() * scales.repeat_interleave(128, 1)[:, :300], x) < 1e-3
    with pytest.raises(NotImplementedError, match="use_ue8m0 must be False"):
        per_token_cast_to_fp8(x, use_ue8m0=True)
    assert calc_diff(torch.zeros(3), torch.zeros(3)) == 0 and abs(calc_diff(torch.ones(3), -torch.ones(3)) - 2) < 1e-12


GATHER = """
import sys, torch, torch.distributed as dist
from megamoe.compat.deep_gemm.utils.dist import uneven_all_gather
dist.init_process_group("gloo", init_method="file://{folder}/store", rank={rank}, world_size=2)
for dtype in (torch.float32, torch.int64, torch.float8_e4m3fn):
    mine = torch.arange(3 + 4 * {rank}, dtype=torch.float32).add(10 * {rank}).reshape(-1, 1).to(dtype)
    whole = torch.cat([torch.arange(3.0), torch.arange(7.0) + 10]).reshape(-1, 1).to(dtype)
    assert torch.equal(uneven_all_gather(mine).float(), whole.float())
    assert torch.equal(uneven_all_gather(mine.T, dim=1).float(), whole.T.float())
    assert uneven_all_gather(mine[:0]).shape == (0, 1)
"""


def test_gathering_of_uneven_rows(tmp_path):
    scripts = [GATHER.format(folder=tmp_path, rank=rank) for rank in range(2)]
    processes = [subprocess.Popen([sys.executable, "-c", script]) for script in scripts]
    assert [process.wait(120) for process in processes] == [0, 0]


def test_the_alias_is_opt_in_and_refuses_to_mix():
    code = (
        "import sys, types, megamoe, megamoe.compat\n"
        "assert 'deep_gemm' not in sys.modules and 'torch' not in sys.modules\n"
        "sys.modules['deep_gemm'] = types.ModuleType('deep_gemm')\n"
        "try:\n  megamoe.compat.install_alias()\nexcept ValueError as error:\n  print(error)\n"
        "del sys.modules['deep_gemm']\n"
        "megamoe.compat.install_alias()\n"
        "import deep_gemm\n"
        "from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8\n"
        "from deep_gemm.utils.dist import dist_print, init_dist, uneven_all_gather\n"
        "from deep_gemm.utils.math import align\n"
        "from deep_gemm.testing import bench, bench_kineto, calc_diff, get_arch_major\n"
        "deep_gemm.set_pdl(True)\nassert deep_gemm.get_pdl()\n"
        "assert deep_gemm.__name__ == 'megamoe.compat.deep_gemm'\n"
        "megamoe.compat.remove_alias()\nassert 'deep_gemm' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "no other deep_gemm may be imported before" in done.stdout
