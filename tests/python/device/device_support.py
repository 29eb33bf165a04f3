"""Random layers in torch, and a reference that dequantises and multiplies in FP32; independent of the package."""

from dataclasses import dataclass

import torch

import megamoe

E4M3 = torch.float8_e4m3fn
# BF16 rounding, and codes that fall on the other side of a tie, more of them on a GPU: docs/numerics.md, for an
# intermediate size of 1,024 or more.
LARGEST_ROW_ERROR = 1.5e-2
LARGEST_MEAN_ERROR = 6e-3


def scales_of(amax):
    """FP32 amax / 448, divided by a tensor: on a GPU torch multiplies by the rounded 1 / 448 where the divisor is a
    number, and a scale that is off by one ulp turns every tie of a row."""
    return amax.clamp(min=1e-10) / torch.full_like(amax, 448)


def quantise_rows(values):
    """Codes and one FP32 scale per row and 128 columns."""
    groups = values.float().reshape(values.shape[0], values.shape[1] // 128, 128)
    scales = scales_of(groups.abs().amax(2))
    return (groups * (1 / scales)[..., None]).to(E4M3).reshape(values.shape), scales


def quantise_blocks(weights):
    """[n, rows, columns] to codes and one FP32 scale per 128 x 128 block."""
    n, rows, columns = weights.shape
    blocks = weights.float().reshape(n, rows // 128, 128, columns // 128, 128)
    scales = scales_of(blocks.abs().amax((2, 4)))
    return (blocks / scales[:, :, None, :, None]).to(E4M3).reshape(weights.shape), scales


def dequantise_rows(codes, scales):
    groups = codes.float().reshape(codes.shape[0], codes.shape[1] // 128, 128)
    return (groups * scales[..., None]).reshape(codes.shape)


def dequantise_blocks(codes, scales):
    return codes.float() * scales.repeat_interleave(128, -2).repeat_interleave(128, -1)


def reference(codes, scales, ids, weights, layer, clamp=None):
    """The whole layer, FP32 [T, H], expert by expert."""
    x = dequantise_rows(codes, scales)
    out = torch.zeros_like(x)
    half = layer.w13.shape[1] // 2
    for expert in range(layer.w13.shape[0]):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate_up = x[token] @ dequantise_blocks(layer.w13[expert], layer.w13_scale[expert]).T
        gate, up = gate_up[:, :half], gate_up[:, half:]
        if clamp is not None:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        hidden = torch.nn.functional.silu(gate) * up * weights[token, slot, None]
        rows = dequantise_rows(*quantise_rows(hidden)) @ dequantise_blocks(layer.w2[expert], layer.w2_scale[expert]).T
        out.index_add_(0, token, rows.bfloat16().float())
    return out


@dataclass
class Layer:
    """All experts' weights and some tokens, on `device`."""

    hidden: int = 512
    intermediate: int = 1024
    num_experts: int = 8
    top_k: int = 2
    num_tokens: int = 24
    seed: int = 0
    device: str = "cuda"

    def __post_init__(self):
        source = torch.Generator(self.device).manual_seed(self.seed)

        def normal(*shape):
            return torch.randn(shape, generator=source, device=self.device)

        h, i, e, t = self.hidden, self.intermediate, self.num_experts, self.num_tokens
        self.w13, self.w13_scale = quantise_blocks(normal(e, 2 * i, h) * 0.05)
        self.w2, self.w2_scale = quantise_blocks(normal(e, h, i) * 0.05)
        self.tokens = normal(t, h).bfloat16()
        self.weights, self.ids = torch.topk(normal(t, e), self.top_k, dim=1)
        self.weights = self.weights.contiguous()

    def share(self, rank, num_ranks):
        n = self.num_experts // num_ranks
        return {name: getattr(self, name)[rank * n : rank * n + n] for name in ("w13", "w13_scale", "w2", "w2_scale")}

    def make(self, group=None, **changes):
        rank, num_ranks = (0, 1) if group is None else (group.rank, group.num_ranks)
        fixed = {"top_k": self.top_k, "max_tokens_per_rank": max(1, self.num_tokens), "timeout": 60}
        declared = {"w13_layout": "gate_up", "scale_format": "float32"}
        return megamoe.MoELayer(**fixed | {"group": group} | declared | self.share(rank, num_ranks) | changes)

    def expected(self, **options):
        codes, scales = quantise_rows(self.tokens)
        return reference(codes, scales, self.ids, self.weights, self, **options)


def row_errors(got, want):
    return (got.float() - want).norm(dim=1) / want.norm(dim=1).clamp(min=1e-30)


def assert_close(got, want, most=LARGEST_ROW_ERROR, mean=LARGEST_MEAN_ERROR):
    errors = row_errors(got, want)
    assert errors.numel() == 0 or errors.max() <= most, f"largest row error {errors.max():.2e} in {errors.argmax()}"
    assert errors.numel() == 0 or errors.mean() <= mean, f"mean row error {errors.mean():.2e}"


def same_bits(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def on_ranks(groups, function):
    """Runs ranks as threads, each on a stream of its own."""

    def rank(group):
        with torch.cuda.stream(torch.cuda.Stream()):
            return function(group)

    return megamoe.run_ranks(groups, rank)
