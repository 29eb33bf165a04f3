"""Runs the program in a fixed environment; reads and writes the small safetensors files that cases need."""

import json
import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FP8 = "tests/fixtures/deepseek_v3_fp8"
BF16 = "tests/fixtures/deepseek_v3"
FIXTURES = ROOT / "tests/fixtures"
FP8_RUN = ["run", "--checkpoint", FP8, "--layer", "1", "--inputs", f"{FP8}/moe_layer_io.safetensors"]
BF16_RUN = ["run", "--checkpoint", BF16, "--layer", "1", "--inputs", f"{BF16}/moe_layer_io.safetensors"]


@dataclass
class Answer:
    code: int
    stdout: str
    stderr: str

    def json(self) -> dict:
        """The answer's only line as JSON."""
        lines = self.stdout.splitlines()
        if len(lines) != 1:
            raise AssertionError(f"expected one line of JSON, got {len(lines)}:\n{self.stdout}\n{self.stderr}")
        return json.loads(lines[0])


@dataclass
class Program:
    path: str

    def run(self, arguments: list[str], **environment: str) -> Answer:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MEGAMOE_")}
        env = kept | {"MEGAMOE_SIMD": "scalar", "LC_ALL": "C"} | environment
        done = subprocess.run(
            [self.path, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
        )
        return Answer(done.returncode, done.stdout, done.stderr)


def read_safetensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Name to (dtype, shape, bytes)."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for name, t in header.items()}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def make_inputs(path: Path, num_tokens: int = 4, hidden: int = 256, top_k: int = 4, bad_id: int | None = None) -> None:
    """Tokens of ones for the fixtures' shape; `bad_id` replaces token 2's slot 1."""
    ids = [(token + slot) % 16 for token in range(num_tokens) for slot in range(top_k)]
    if bad_id is not None:
        ids[2 * top_k + 1] = bad_id
    write_safetensors(
        path,
        {
            "hidden_states": ("BF16", [num_tokens, hidden], b"\x80\x3f" * (num_tokens * hidden)),
            "topk_ids": ("I64", [num_tokens, top_k], struct.pack(f"<{len(ids)}q", *ids)),
            "topk_weights": ("F32", [num_tokens, top_k], struct.pack("<f", 0.25) * (num_tokens * top_k)),
        },
    )


def make_checkpoint(folder: Path, source: str, drop: str = "", **config_changes: object) -> None:
    """A copy of a fixture with keys of config.json changed (None removes one) and a tensor dropped."""
    folder.mkdir()
    config = json.loads((FIXTURES / source / "config.json").read_text()) | config_changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    tensors = read_safetensors(FIXTURES / source / "model.safetensors")
    tensors.pop(drop, None)
    write_safetensors(folder / "model.safetensors", tensors)


def make_files(folder: Path) -> None:
    """The damaged and mismatched files that cases name as TMP/..."""
    make_inputs(folder / "good.safetensors")
    make_inputs(folder / "id_99.safetensors", bad_id=99)
    make_inputs(folder / "id_minus_2.safetensors", bad_id=-2)
    make_inputs(folder / "hidden_384.safetensors", hidden=384)
    make_inputs(folder / "top_2.safetensors", top_k=2)
    whole = (folder / "good.safetensors").read_bytes()
    (folder / "truncated.safetensors").write_bytes(whole[:-100])
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "not_json.safetensors").write_bytes(struct.pack("<Q", 9) + b"not json!")
    tensors = read_safetensors(folder / "good.safetensors")
    del tensors["topk_weights"]
    write_safetensors(folder / "no_weights.safetensors", tensors)
    del tensors["topk_ids"]
    write_safetensors(folder / "tokens.safetensors", tensors)
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    make_checkpoint(folder / "no_scaling", "deepseek_v3_fp8", routed_scaling_factor=None)
    make_checkpoint(folder / "no_bias", "deepseek_v3_fp8", drop=bias)
    make_checkpoint(folder / "no_shared_count", "deepseek_v3_fp8", n_shared_experts=None)
    make_checkpoint(folder / "no_shared", "deepseek_v3_fp8", drop="model.layers.1.mlp.shared_experts.up_proj.weight")
    make_checkpoint(folder / "other_router", "deepseek_v3_fp8", model_type="new_model")
    make_checkpoint(folder / "awq", "mixtral", quantization_config={"quant_method": "awq", "bits": 4})
    make_checkpoint(folder / "gpt_oss", "mixtral", model_type="gpt_oss")
    (folder / "no_config").mkdir()
    (folder / "half_config").mkdir()
    config = json.loads((ROOT / FP8 / "config.json").read_text())
    del config["moe_intermediate_size"]
    (folder / "half_config" / "config.json").write_text(json.dumps(config))
