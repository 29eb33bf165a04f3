"""What the layer must compute, in plain numpy with float64 sums: written from docs/numerics.md, sharing no code."""

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn
BF16 = ml_dtypes.bfloat16


def quantise_rows(values):
    """FP32 rows to E4M3 codes and one FP32 scale per 128 columns; the last group may be shorter."""
    values = np.asarray(values, np.float32)
    codes = np.empty(values.shape, E4M3)
    scales = np.empty((values.shape[0], -(-values.shape[1] // 128)), np.float32)
    for group in range(scales.shape[1]):
        columns = slice(group * 128, group * 128 + 128)
        part = values[:, columns]
        largest = np.fmax(np.abs(part).max(axis=1), np.float32(1e-10))
        scales[:, group] = largest / np.float32(448)
        inverse = np.float32(1) / scales[:, group]
        codes[:, columns] = np.clip(part * inverse[:, None], -448, 448).astype(E4M3)
    return codes, scales


def dequantise_rows(codes, scales):
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 128, axis=1)[:, : codes.shape[1]]


def dequantise_blocks(codes, scales):
    """[rows, columns] codes with a [ceil(rows / 128), ceil(columns / 128)] grid."""
    grid = np.repeat(np.repeat(scales.astype(np.float64), 128, axis=0), 128, axis=1)
    return codes.astype(np.float64) * grid[: codes.shape[0], : codes.shape[1]]


def gate_and_up(w13, w13_scale, layout="gate_up"):
    """One expert's gate and up matrices [I, H], FP64."""
    half = w13.shape[0] // 2
    rows = np.arange(2 * half)
    orders = {
        "gate_up": (rows[:half], rows[half:]),
        "up_gate": (rows[half:], rows[:half]),
        "interleaved_1": (rows[0::2], rows[1::2]),
        "interleaved_8": (rows[rows // 8 % 2 == 0], rows[rows // 8 % 2 == 1]),
    }
    grids = w13_scale.reshape(2, -1, w13_scale.shape[-1])
    first = 1 if layout == "up_gate" else 0
    gate, up = orders[layout]
    return dequantise_blocks(w13[gate], grids[first]), dequantise_blocks(w13[up], grids[1 - first])


def swiglu(gate, up, clamp=None):
    if clamp is not None:
        gate, up = np.minimum(gate, clamp), np.clip(up, -clamp, clamp)
    return gate / (1 + np.exp(-gate)) * up


def expert(codes, scales, w13, w13_scale, w2, w2_scale, weight, clamp=None, layout="gate_up"):
    """One expert on some rows: FP64 [rows, H] before the rounding to BF16."""
    x = dequantise_rows(codes, scales)
    gate, up = gate_and_up(w13, w13_scale, layout)
    hidden = swiglu(x @ gate.T, x @ up.T, clamp) * np.asarray(weight, np.float64)[:, None]
    return dequantise_rows(*quantise_rows(hidden)) @ dequantise_blocks(w2, w2_scale).T


def moe(tokens, ids, weights, data, clamp=None, layout="gate_up"):
    """The whole layer for BF16 tokens, or (codes, scales): FP64 [T, H].

    `data`: an object with w13, w13_scale, w2, w2_scale of all experts.
    """
    codes, scales = tokens if isinstance(tokens, tuple) else quantise_rows(tokens)
    out = np.zeros((codes.shape[0], codes.shape[1]))
    for token in range(codes.shape[0]):
        for slot in range(ids.shape[1]):
            e = int(ids[token, slot])
            if e < 0:
                continue
            row = expert(
                codes[token : token + 1], scales[token : token + 1], data.w13[e], data.w13_scale[e], data.w2[e],
                data.w2_scale[e], weights[token : token + 1, slot], clamp, layout,
            )  # fmt: skip
            out[token] += row[0].astype(np.float32).astype(BF16).astype(np.float64)
    return out


def row_errors(got, want):
    """Relative L2 error of each row; an all-zero row must be met exactly."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    size = np.linalg.norm(want, axis=1)
    return np.linalg.norm(got - want, axis=1) / np.where(size == 0, 1e-30, size)
