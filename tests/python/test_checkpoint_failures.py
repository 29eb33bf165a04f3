"""Checkpoints with missing, cut, surplus or contradicting tensors: a sentence by name before anything is used."""

import json
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import megamoe

NUM_EXPERTS, SIZE = 8, 256
STEM = "model.layers.1.mlp."
TYPES = {"float8_e4m3fn": "F8_E4M3", "float32": "F32", "bfloat16": "BF16", "float8_e5m2": "F8_E5M2", "int8": "I8"}
CONFIG = {
    "model_type": "deepseek_v3", "hidden_size": SIZE, "moe_intermediate_size": SIZE, "n_routed_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "n_shared_experts": 0, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


def write_safetensors(path, tensors):
    header, body = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


class Folder:
    """A checkpoint of 8 experts in 4 shards, two experts each; the router is in the first."""

    def __init__(self, path):
        self.path = path
        rng = np.random.default_rng(1)
        self.shards = [{} for _ in range(4)]
        for expert in range(NUM_EXPERTS):
            for part in ("gate_proj", "up_proj", "down_proj"):
                name = f"{STEM}experts.{expert}.{part}.weight"
                codes = (rng.standard_normal((SIZE, SIZE)) * 60).astype(ml_dtypes.float8_e4m3fn)
                self.shards[expert // 2][name] = codes
                self.shards[expert // 2][f"{name}_scale_inv"] = np.full((2, 2), 1e-3, np.float32)
        self.shards[0][f"{STEM}gate.weight"] = rng.standard_normal((NUM_EXPERTS, SIZE)).astype(ml_dtypes.bfloat16)
        self.shards[0][f"{STEM}gate.e_score_correction_bias"] = np.zeros(NUM_EXPERTS, np.float32)
        self.index = None
        self.config = dict(CONFIG)

    def shard(self, number):
        return self.path / f"model-{number:05}-of-00004.safetensors"

    def write(self):
        self.path.joinpath("config.json").write_text(json.dumps(self.config))
        places = {}
        for number, tensors in enumerate(self.shards, 1):
            write_safetensors(self.shard(number), tensors)
            places |= dict.fromkeys(tensors, self.shard(number).name)
        index = places if self.index is None else places | self.index
        self.path.joinpath("model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        return self

    def rename(self, pattern, replacement):
        self.shards = [
            {re.sub(pattern, replacement, name): array for name, array in tensors.items()} for tensors in self.shards
        ]

    def refusal(self, kind=megamoe.BadFileError, **options):
        with pytest.raises(kind) as caught:
            megamoe.load_checkpoint(self.path, 1, **options)
        assert isinstance(caught.value, megamoe.MegamoeError)
        return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_the_whole_folder_loads_and_runs(folder):
    checkpoint = megamoe.load_checkpoint(folder.write().path, 1)
    assert not checkpoint.was_packed and checkpoint.w13.shape == (8, 512, 256)
    last = folder.shards[3][f"{STEM}experts.7.down_proj.weight"]
    np.testing.assert_array_equal(checkpoint.w2[7].view(np.uint8), last.view(np.uint8))
    tokens = np.ones((3, SIZE), ml_dtypes.bfloat16)
    with checkpoint.make_layer(max_tokens_per_rank=4, num_threads=1) as layer:
        assert np.isfinite(checkpoint.run(layer, tokens).astype(np.float32)).all()


def test_a_deleted_shard_is_named(folder):
    folder.write().shard(3).unlink()
    assert "model-00003-of-00004.safetensors" in folder.refusal()


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_shard_that_was_cut_says_how_many_bytes_are_missing(folder, rank):
    """On every rank, also on those whose experts lie in other shards."""
    path = folder.write().shard(2)
    path.write_bytes(path.read_bytes()[:-4096])
    sentence = folder.refusal(group=megamoe.thread_group(4)[rank])
    assert "model-00002-of-00004.safetensors" in sentence and "4096 bytes are missing" in sentence


def test_a_missing_scale_is_named_and_the_weight_not_used_without(folder):
    del folder.shards[2][f"{STEM}experts.5.down_proj.weight_scale_inv"]
    folder.write()
    assert "experts.5.down_proj.weight_scale_inv" in folder.refusal()


def test_a_missing_weight_is_named(folder):
    del folder.shards[2][f"{STEM}experts.5.up_proj.weight"]
    assert "experts.5.up_proj.weight" in folder.write().refusal()


def test_experts_under_an_unknown_pattern(folder):
    folder.rename(r"experts\.(\d+)\.(\w+)_proj", r"specialists.\1.\2_matrix")
    sentence = folder.write().refusal()
    assert "layer 1" in sentence and "experts" in sentence


def test_scales_under_another_name_are_not_guessed(folder):
    folder.rename("weight_scale_inv$", "scale")
    sentence = folder.write().refusal()
    assert "missing (24)" in sentence and "experts.0.gate_proj.weight_scale_inv" in sentence


def test_an_expert_too_many(folder):
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = f"{STEM}experts.8.{part}.weight"
        folder.shards[3][name] = np.zeros((SIZE, SIZE), ml_dtypes.float8_e4m3fn)
        folder.shards[3][f"{name}_scale_inv"] = np.ones((2, 2), np.float32)
    assert "experts.8." in folder.write().refusal()


def test_one_name_in_two_shards(folder):
    name = f"{STEM}experts.0.gate_proj.weight"
    folder.shards[2][name] = folder.shards[0][name]
    assert name in folder.write().refusal()


def test_an_index_that_names_a_fifth_shard_of_four(folder):
    folder.index = {f"{STEM}experts.7.up_proj.weight": "model-00005-of-00004.safetensors"}
    assert "model-00005-of-00004.safetensors" in folder.write().refusal()


@pytest.mark.parametrize(
    ("name", "array", "word"),
    [
        ("experts.3.gate_proj.weight", np.zeros((256, 128), ml_dtypes.float8_e4m3fn), "[256, 128]"),
        ("experts.3.gate_proj.weight_scale_inv", np.ones((2, 1), np.float32), "[2, 1]"),
        ("experts.3.down_proj.weight", np.zeros((256, 256), np.int8), "I8"),
        ("gate.weight", np.zeros((4, 256), ml_dtypes.bfloat16), "[4, 256]"),
        ("gate.e_score_correction_bias", np.full(8, np.nan, np.float32), "nan"),
    ],
)
def test_tensors_that_contradict_the_config(folder, name, array, word):
    next(shard for shard in folder.shards if STEM + name in shard)[STEM + name] = array
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        megamoe.load_checkpoint(folder.write().path, 1)
    assert name in str(caught.value) and word.lower() in str(caught.value).lower()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_found_by_the_rank_that_reads_them(folder, value):
    """A rank reads its own experts alone."""
    scale = folder.shards[3][f"{STEM}experts.6.up_proj.weight_scale_inv"]
    scale[1, 0] = value
    groups = megamoe.thread_group(2)
    assert megamoe.load_checkpoint(folder.write().path, 1, groups[0]).expert_end == 4
    assert "experts.6.up_proj.weight_scale_inv" in folder.refusal(group=groups[1])


def test_a_missing_config_key_is_an_error_and_not_a_default(folder):
    del folder.config["num_experts_per_tok"]
    assert "num_experts_per_tok" in folder.write().refusal()
    folder.config = {name: value for name, value in CONFIG.items() if name != "norm_topk_prob"}
    assert "norm_topk_prob" in folder.write().refusal()
    assert megamoe.load_checkpoint(folder.path, 1, routed_only=True).router is None


def test_what_is_recognised_but_not_loaded(folder):
    folder.config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    assert "awq" in folder.write().refusal(NotImplementedError)


def test_a_router_that_is_not_known_leaves_the_experts_usable(folder):
    folder.config["model_type"] = "some_new_model"
    checkpoint = megamoe.load_checkpoint(folder.write().path, 1)
    assert checkpoint.router is None and checkpoint.w13.shape[0] == 8
    with pytest.raises(NotImplementedError, match="some_new_model"):
        checkpoint.route(np.ones((1, SIZE), np.float32))


def test_folders_that_are_no_checkpoints(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"config\.json must be a readable file"):
            megamoe.load_checkpoint(path, 1)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        megamoe.load_checkpoint(tmp_path, 1)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(megamoe.BadFileError) as caught:
        megamoe.load_checkpoint(tmp_path, 1)
    assert not isinstance(caught.value, FileNotFoundError)


def test_layers_and_ranks_that_there_are_not(folder):
    folder.write()
    for layer in (0, 2):
        with pytest.raises(ValueError, match=f"layer {layer} must have experts, it has none"):
            megamoe.load_checkpoint(folder.path, layer)
    with pytest.raises(ValueError, match="layer must be a number of the model's, got -1"):
        megamoe.load_checkpoint(folder.path, -1)
    with pytest.raises(ValueError, match="must be divisible by the number of ranks, got 8 experts on 3 ranks"):
        megamoe.load_checkpoint(folder.path, 1, megamoe.thread_group(3)[0])


def test_a_file_that_shrinks_ends_no_process(folder):
    """Reads, not mapped pages: no SIGBUS."""
    folder.write()
    code = (
        f"import sys\nsys.path[:0] = {[p for p in sys.path if p]!r}\nimport megamoe, os, threading\n"
        f"path = {str(folder.shard(4))!r}\n"
        "stop = threading.Event()\nwhole = open(path, 'rb').read()\n"
        "def shrink():\n  while not stop.is_set():\n    os.truncate(path, 5000)\n    open(path, 'wb').write(whole)\n"
        "thread = threading.Thread(target=shrink)\nthread.start()\ncounts = [0, 0]\n"
        "for _ in range(40):\n"
        f"  try:\n    megamoe.load_checkpoint({str(folder.path)!r}, 1)\n    counts[0] += 1\n"
        "  except ValueError:\n    counts[1] += 1\n"
        "stop.set()\nthread.join()\nprint(sum(counts))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "40\n", done.stderr
