"""FP8 codes and scales as docs/numerics.md defines them, in numpy: for preparing weights and for tests of callers."""

from __future__ import annotations

from typing import Any

from megamoe._errors import InvalidArgumentError


def quantize_blocks(weights: Any) -> tuple[Any, Any]:
    """E4M3 codes and one float32 scale per 128 x 128 block; value = code * scale. Needs numpy and ml_dtypes.

    `weights`: [..., rows, columns] of any float type. Returns codes of the same shape (float8_e4m3fn) and scales
    [..., ceil(rows / 128), ceil(columns / 128)]. Quantise gate and up apart where I is no multiple of 128.
    """
    import ml_dtypes
    import numpy as np

    values = np.asarray(weights, dtype=np.float32)
    if values.ndim < 2:
        raise InvalidArgumentError(
            f"megamoe.quantize_blocks: weights must have at least 2 dimensions, got {values.ndim}; add one"
        )
    rows, columns = values.shape[-2:]
    padding = [(0, 0)] * (values.ndim - 2) + [(0, -rows % 128), (0, -columns % 128)]
    padded = np.pad(values, padding)
    blocks = padded.reshape(*padded.shape[:-2], padded.shape[-2] // 128, 128, padded.shape[-1] // 128, 128)
    largest = np.abs(blocks).max(axis=(-3, -1), keepdims=True)
    scales = np.maximum(largest, np.float32(1e-10)) / np.float32(448)
    codes = np.clip(blocks * (np.float32(1) / scales), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    codes = codes.reshape(padded.shape)[..., :rows, :columns]
    return np.ascontiguousarray(codes), np.ascontiguousarray(scales[..., :, 0, :, 0])


def quantize_tokens(tokens: Any) -> tuple[Any, Any]:
    """E4M3 codes and one float32 scale per 128 columns of each row, as the layer does for bfloat16 tokens.

    `tokens`: [T, H] of any float type, H a multiple of 128. Returns codes [T, H] and scales [T, H/128].
    """
    import ml_dtypes
    import numpy as np

    values = np.asarray(tokens, dtype=np.float32)
    if values.ndim != 2 or values.shape[1] % 128:
        raise InvalidArgumentError(
            f"megamoe.quantize_tokens: tokens must have shape [T, multiple of 128], got {list(values.shape)}"
        )
    groups = values.reshape(values.shape[0], -1, 128)
    scales = np.maximum(np.abs(groups).max(axis=-1), np.float32(1e-10)) / np.float32(448)
    codes = np.clip(groups * (np.float32(1) / scales)[..., None], -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return codes.reshape(values.shape), scales
