#!/usr/bin/env python3
"""Writes small checkpoints of transformers' MoE model classes and what their MoE block computes in FP32.

Usage: make_fixtures.py OUT [NAME...]     (needs torch, transformers and safetensors; a CPU is enough)

Each folder holds config.json and the tensors of layer 1's block (the rest of the model is left out) as
`save_pretrained` names them, and moe_layer_io.safetensors:
  hidden_states BF16 [T, H]    tokens
  topk_ids I64 [T, K], topk_weights F32 [T, K]    what the block's router chose, computed in FP32
  output_fp32 F32 [T, H]       the whole block, shared experts included, in FP32 from the stored weights
"""

import copy
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

TOKENS = 40
BASE = {
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "head_dim": 32,
}
# name: (model class, config class, block class, settings)
FAMILIES = {
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        "MixtralSparseMoeBlock",
        {"hidden_size": 256, "intermediate_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        "Qwen3MoeSparseMoeBlock",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
        },
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        "Qwen2MoeSparseMoeBlock",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 160,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
        },
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeSparseMoeBlock",
        {
            "hidden_size": 128,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["full_attention", "full_attention"],
        },
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        "Glm4MoeMoE",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "moe_intermediate_size": 128,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
        },
    ),
    "glm4_moe_fp8": (
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        "Glm4MoeMoE",
        {
            "hidden_size": 256,
            "intermediate_size": 256,
            "moe_intermediate_size": 128,
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
        },
    ),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        "Llama4TextMoe",
        {
            "hidden_size": 128,
            "intermediate_size": 128,
            "intermediate_size_mlp": 256,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
        },
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        "MiniMaxM2Config",
        "MiniMaxM2SparseMoeBlock",
        {"hidden_size": 128, "intermediate_size": 128, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "deepseek_v4_mxfp4": (
        "DeepseekV4ForCausalLM",
        "DeepseekV4Config",
        "DeepseekV4SparseMoeBlock",
        {
            "hidden_size": 256,
            "moe_intermediate_size": 128,
            "n_routed_experts": 16,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "num_hash_layers": 0,
            "swiglu_limit": 2.0,
            "routed_scaling_factor": 1.5,
        },
    ),
}
PACKED = {"qwen3_5_moe"}  # written with transformers' own tensors over all experts
FP8 = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
QUANTISED = {"deepseek_v4_mxfp4": FP8 | {"expert_dtype": "fp4"}, "glm4_moe_fp8": FP8}  # and what config.json says of it
MAX_SHARD_BYTES = {"glm4_moe": 300_000}  # one family in shards under an index
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def randomise(model: torch.nn.Module) -> None:
    """Weights large enough that SwiGLU bends and the router decides; biases that change its choice."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "experts" in name and parameter.dim() >= 2:
                fan_in = parameter.shape[-2] if "Llama4" in type(model).__name__ and parameter.dim() == 3 else 0
                parameter.normal_(0, 1.5 / (fan_in or parameter.shape[-1]) ** 0.5)
            elif "shared_expert" in name and parameter.dim() >= 2:
                parameter.normal_(0, 1.5 / parameter.shape[-1] ** 0.5)
            if name.endswith("gate.weight") or "router" in name:
                parameter.normal_(0, 2.0 / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_(torch.linspace(-0.05, 0.05, buffer.numel()))


def to_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nearest E2M1 numbers in runs of 32 columns that share a power of two: packed codes, exponent bytes, values."""
    rows, columns = weight.shape
    runs = weight.float().reshape(rows, columns // 32, 32)
    exponent = torch.floor(torch.log2(runs.abs().amax(-1).clamp(min=2.0**-100))) - 2
    scaled = runs / torch.exp2(exponent)[..., None]
    code = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    values = (torch.sign(scaled) * E2M1[code] * torch.exp2(exponent)[..., None]).reshape(rows, columns)
    nibble = (code + 8 * (scaled < 0)).to(torch.uint8).reshape(rows, columns)
    packed = (nibble[:, 0::2] | nibble[:, 1::2] << 4).view(torch.int8)
    return packed, (exponent + 127).to(torch.uint8), values


def to_fp8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """E4M3 codes, one FP32 scale (a multiplier) for 128 x 128, and the numbers that they stand for."""
    rows, columns = weight.shape
    codes, values = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight, dtype=torch.float32)
    scale = torch.empty((rows + 127) // 128, (columns + 127) // 128)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            place = (slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128))
            scale[i, j] = weight[place].float().abs().max() / 448
            codes[place] = (weight[place].float() / scale[i, j]).to(torch.float8_e4m3fn)
            values[place] = codes[place].float() * scale[i, j]
    return codes, scale, values


def quantise_experts(
    tensors: dict[str, torch.Tensor], block: torch.nn.Module, is_mxfp4: bool
) -> dict[str, torch.Tensor]:
    """Experts to MXFP4 (the routed ones) or FP8, in the file and (as the numbers that it then holds) in the block."""
    result = dict(tensors)
    for name, tensor in tensors.items():
        is_routed = ".experts." in name
        if "experts." not in name or (is_mxfp4 and not is_routed):
            continue
        packed, scale, values = to_mxfp4(tensor) if is_mxfp4 else to_fp8(tensor)
        result[name] = packed
        if is_mxfp4:
            result[name.removesuffix("weight") + "scale"] = scale.view(torch.float8_e8m0fnu)
        else:
            result[name + "_scale_inv"] = scale
        projection = name.split(".")[-2]
        if is_routed:
            expert, half = int(name.split(".experts.")[1].split(".")[0]), len(block.experts.gate_up_proj[0]) // 2
            rows = {"w1": slice(half), "gate_proj": slice(half), "w3": slice(half, None), "up_proj": slice(half, None)}
            down = projection in ("w2", "down_proj")
            target = block.experts.down_proj[expert] if down else block.experts.gate_up_proj[expert]
            target = target[rows.get(projection, slice(None))]
        else:
            target = getattr(block.shared_experts, projection).weight
        with torch.no_grad():
            target.copy_(values)
    return result


def run_block(block: torch.nn.Module, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    kept = {}

    def router_hook(_module: object, _arguments: object, result: tuple) -> None:
        if type(block).__name__ == "Llama4TextMoe":
            ids = torch.topk(result[1], block.top_k, dim=1)[1]
            kept["topk_weights"], kept["topk_ids"] = result[0].gather(1, ids), ids
        else:
            kept["topk_weights"], kept["topk_ids"] = result[1], result[2]

    gate = block.router if hasattr(block, "router") else block.gate
    gate.register_forward_hook(router_hook)
    with torch.no_grad():
        result = block(hidden.float()[None])
    result = result[0] if isinstance(result, tuple) else result
    kept["output_fp32"] = result.reshape(hidden.shape)
    return {
        "hidden_states": hidden,
        "topk_ids": kept["topk_ids"].long(),
        "topk_weights": kept["topk_weights"].float(),
        "output_fp32": kept["output_fp32"],
    }


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], max_bytes: int) -> None:
    shards, size = [{}], 0
    for name, tensor in sorted(tensors.items()):
        num_bytes = tensor.numel() * tensor.element_size()
        if shards[-1] and size + num_bytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += num_bytes
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file_name)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def make(out: Path, name: str) -> None:
    model_class, config_class, block_class, settings = FAMILIES[name]
    torch.manual_seed(7)
    config = getattr(transformers, config_class)(**BASE, **settings)
    model = getattr(transformers, model_class)(config).eval()
    randomise(model)
    model = model.to(torch.bfloat16)
    folder = out / name
    model.save_pretrained(folder, save_original_format=name not in PACKED)
    (folder / "generation_config.json").unlink(missing_ok=True)
    blocks = {path: module for path, module in model.named_modules() if type(module).__name__ == block_class}
    path = [path for path in blocks if ".1." in path][-1]
    block = copy.deepcopy(blocks[path]).float()

    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    kept = {key: value.contiguous() for key, value in stored.items() if "layers.1." in key and is_of_block(key)}
    if name in QUANTISED:
        kept = quantise_experts(kept, block, name.endswith("mxfp4"))
        text = json.loads((folder / "config.json").read_text()) | QUANTISED[name]
        (folder / "config.json").write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")
    if name in MAX_SHARD_BYTES:
        write_shards(folder, kept, MAX_SHARD_BYTES[name])
    else:
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(3)
    hidden = torch.randn(TOKENS, config.hidden_size).to(torch.bfloat16)
    tensors = {key: value.contiguous() for key, value in run_block(block, hidden).items()}
    metadata = {"layer": path, "class": block_class, "transformers": transformers.__version__}
    save_file(tensors, folder / "moe_layer_io.safetensors", metadata=metadata)
    print(f"{name}: {len(kept)} tensors, {sum(f.stat().st_size for f in folder.iterdir())} bytes, {sorted(kept)[0]}")


def is_of_block(name: str) -> bool:
    return any(part in name for part in (".mlp.", ".ffn.", ".block_sparse_moe.", ".feed_forward."))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for family in sys.argv[2:] or FAMILIES:
        make(Path(sys.argv[1]), family)
