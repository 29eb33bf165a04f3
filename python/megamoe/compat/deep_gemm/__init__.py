"""What a program written for DeepGEMM's SM90 FP8 Mega MoE calls, with the same names and signatures. Imports torch.

Only that part: its GEMMs and its other Mega MoE formats are not here, and asking for them is an AttributeError. Written
for this project from the public signatures; no code of DeepGEMM is in it.
"""

from megamoe.compat.deep_gemm import mega, testing, utils
from megamoe.compat.deep_gemm.mega import (
    SM90SymmBuffer,
    SymmBuffer,
    fp8_mega_moe,
    fp8_mega_moe_sm90,
    get_symm_buffer_for_sm90_mega_moe,
    transform_weights_for_mega_moe_sm90,
)
from megamoe.compat.deep_gemm.utils import (
    align,
    ceil_div,
    per_block_cast_to_fp8,
    per_token_cast_to_fp8,
)

__all__ = [
    "SM90SymmBuffer",
    "SymmBuffer",
    "align",
    "ceil_div",
    "fp8_mega_moe",
    "fp8_mega_moe_sm90",
    "get_num_sms",
    "get_pdl",
    "get_symm_buffer_for_sm90_mega_moe",
    "mega",
    "per_block_cast_to_fp8",
    "per_token_cast_to_fp8",
    "set_num_sms",
    "set_pdl",
    "testing",
    "transform_weights_for_mega_moe_sm90",
    "utils",
]

_settings = {"pdl": False}


def set_pdl(enabled: bool) -> None:
    """Accepted and kept for `get_pdl`: this kernel is one launch, and nothing starts early."""
    _settings["pdl"] = bool(enabled)


def get_pdl() -> bool:
    """What `set_pdl` was told last."""
    return _settings["pdl"]


def get_num_sms() -> int:
    """How many SMs a call uses: all of the current GPU's."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


def set_num_sms(num_sms: int) -> None:
    """Only the number of all SMs is accepted: the kernel takes the whole GPU."""
    from megamoe._errors import NotSupportedError

    if num_sms != get_num_sms():
        raise NotSupportedError(
            f"deep_gemm.set_num_sms (megamoe): num_sms must be {get_num_sms()}, since a call uses the whole GPU, got "
            f"{num_sms}"
        )
