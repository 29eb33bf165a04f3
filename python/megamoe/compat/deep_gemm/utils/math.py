"""`deep_gemm.utils.math`: rounding of sizes, and FP8 casts with FP32 scales."""

import torch
from torch import Tensor

from megamoe._errors import NotSupportedError

_SMALLEST = 1e-4  # of the largest magnitude in a block: what those programs expect
_LARGEST_CODE = 448.0


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The smallest multiple of y that is not below x."""
    return ceil_div(x, y) * y


def _only_fp32(function: str, use_ue8m0: bool) -> None:
    if use_ue8m0:
        raise NotSupportedError(
            f"deep_gemm.utils.{function} (megamoe): use_ue8m0 must be False, since the SM90 path takes FP32 scales"
        )


def _cast(blocks: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Codes, and scales with the reduced dimensions kept as 1."""
    values = blocks.float()
    scales = values.abs().amax(dim=dims, keepdim=True).clamp(min=_SMALLEST) / _LARGEST_CODE
    return (values * scales.reciprocal()).to(torch.float8_e4m3fn), scales


def per_token_cast_to_fp8(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """[m, n] to float8_e4m3fn codes [m, n] and float32 scales [m, ceil(n / gran_k)]: value = code * scale."""
    _only_fp32("per_token_cast_to_fp8", use_ue8m0 or use_packed_ue8m0)
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x, (0, align(columns, gran_k) - columns))
    codes, scales = _cast(padded.view(rows, padded.shape[1] // gran_k, gran_k), (2,))
    return codes.view(padded.shape)[:, :columns].contiguous(), scales.squeeze(2)


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """[m, n] to float8_e4m3fn codes [m, n] and float32 scales, one for each gran_k x gran_k block."""
    _only_fp32("per_block_cast_to_fp8", use_ue8m0)
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x, (0, align(columns, gran_k) - columns, 0, align(rows, gran_k) - rows))
    blocks = padded.view(padded.shape[0] // gran_k, gran_k, padded.shape[1] // gran_k, gran_k)
    codes, scales = _cast(blocks, (1, 3))
    return codes.view(padded.shape)[:rows, :columns].contiguous(), scales.view(blocks.shape[0], blocks.shape[2])
