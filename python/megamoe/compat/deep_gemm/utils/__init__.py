"""`deep_gemm.utils`, as far as Mega MoE programs use it."""

from megamoe.compat.deep_gemm.utils.math import align, ceil_div, per_block_cast_to_fp8, per_token_cast_to_fp8

__all__ = ["align", "ceil_div", "per_block_cast_to_fp8", "per_token_cast_to_fp8"]
