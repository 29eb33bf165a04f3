"""Random layers, and ranks that each hold their share of one."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np

import megamoe
import oracle

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
LARGEST_ROW_ERROR = 4e-3  # BF16 rounding and codes that fall on the other side of a tie


@dataclass
class Layer:
    """All experts' weights and some tokens."""

    hidden: int = 256
    intermediate: int = 128
    num_experts: int = 8
    top_k: int = 2
    num_tokens: int = 12
    seed: int = 0
    w13: np.ndarray = field(init=False)
    w13_scale: np.ndarray = field(init=False)
    w2: np.ndarray = field(init=False)
    w2_scale: np.ndarray = field(init=False)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        h, i, e, k, t = self.hidden, self.intermediate, self.num_experts, self.top_k, self.num_tokens
        i_blocks = -(-i // 128)
        self.w13 = (rng.standard_normal((e, 2 * i, h)) * 60).astype(np.float32).astype(oracle.E4M3)
        self.w2 = (rng.standard_normal((e, h, i)) * 60).astype(np.float32).astype(oracle.E4M3)
        self.w13_scale = (rng.random((e, 2, i_blocks, h // 128)) * 1e-3 + 5e-4).astype(np.float32)
        self.w2_scale = (rng.random((e, h // 128, i_blocks)) * 1e-3 + 5e-4).astype(np.float32)
        self.tokens = rng.standard_normal((t, h)).astype(oracle.BF16)
        self.ids = np.argsort(rng.random((t, e)), axis=1)[:, :k].astype(np.int64)
        self.weights = rng.random((t, k), dtype=np.float32)

    def share(self, rank, num_ranks):
        """The constructor arguments of a rank: its experts' weights."""
        n = self.num_experts // num_ranks
        mine = slice(rank * n, rank * n + n)
        names = ("w13", "w13_scale", "w2", "w2_scale")
        return {name: np.ascontiguousarray(getattr(self, name)[mine]) for name in names}

    def make(self, group=None, **changes):
        rank, num_ranks = (0, 1) if group is None else (group.rank, group.num_ranks)
        arguments = {
            "group": group, "top_k": self.top_k, "max_tokens_per_rank": max(1, self.num_tokens),
            "w13_layout": "gate_up", "scale_format": "float32", "num_threads": 1, "timeout": 60,
        }  # fmt: skip
        return megamoe.MoELayer(**arguments | self.share(rank, num_ranks) | changes)

    def expected(self, **options):
        return oracle.moe(self.tokens, self.ids, self.weights, self, **options)


def on_ranks(num_ranks, function):
    """Calls function(group) on a thread for each rank of a new group."""
    return megamoe.run_ranks(megamoe.thread_group(num_ranks), function)


def assert_close(got, want, most=LARGEST_ROW_ERROR):
    errors = oracle.row_errors(np.asarray(got).astype(np.float64), want)
    assert errors.max(initial=0) <= most, f"largest row error {errors.max():.2e} in row {errors.argmax()}"


def read_safetensors(path):
    """The tensors of a file, by name."""
    types = {
        "F32": np.float32, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "I64": np.int64,
    }  # fmt: skip
    raw = Path(path).read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    body = memoryview(raw)[8 + header_bytes :]
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + header_bytes]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(body[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return tensors
