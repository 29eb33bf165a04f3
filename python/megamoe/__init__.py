"""megamoe: an expert-parallel FP8 Mixture-of-Experts layer, on CPU threads and processes and on Hopper GPUs.

Importing it needs no GPU, driver, torch or numpy. See `MoELayer` and `load_checkpoint`; `megamoe.torch` has the PyTorch
operator.
"""

from megamoe import routing
from megamoe._arguments import workspace_bytes
from megamoe._checkpoint import Checkpoint, load_checkpoint
from megamoe._errors import (
    BadFileError,
    InternalError,
    InvalidArgumentError,
    MegamoeError,
    MissingFileError,
    NotSupportedError,
    OutOfMemoryError,
    PeerFailedError,
    PoisonedError,
    RankTimeoutError,
)
from megamoe._fused import fused_experts, release_fused_experts
from megamoe._groups import (
    Group,
    cuda_process_group,
    cuda_thread_group,
    process_group,
    run_ranks,
    thread_group,
)
from megamoe._layer import MoELayer, Weights
from megamoe._library import __version__, set_log_callback
from megamoe._quantize import quantize_blocks, quantize_tokens
from megamoe._tensors import typed

__all__ = [
    "BadFileError",
    "Checkpoint",
    "Group",
    "InternalError",
    "InvalidArgumentError",
    "MegamoeError",
    "MissingFileError",
    "MoELayer",
    "NotSupportedError",
    "OutOfMemoryError",
    "PeerFailedError",
    "PoisonedError",
    "RankTimeoutError",
    "Weights",
    "__version__",
    "cuda_process_group",
    "cuda_thread_group",
    "fused_experts",
    "load_checkpoint",
    "process_group",
    "quantize_blocks",
    "quantize_tokens",
    "release_fused_experts",
    "routing",
    "run_ranks",
    "set_log_callback",
    "thread_group",
    "typed",
    "workspace_bytes",
]
