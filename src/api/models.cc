// The table of presets and the search in it.
#include "api/models.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <utility>

namespace megamoe::api {
namespace {

constexpr std::string_view kSlime = "THUDM/slime scripts/models";
constexpr std::string_view kFlashInfer = "FlashInfer cutedsl_megamoe/TUNING.md";
constexpr std::string_view kHuggingFace = "config.json on Hugging Face";
constexpr std::string_view kMxfp4 = "the published experts are MXFP4; here they are E4M3 with 128x128 scales";
constexpr std::string_view kWeightOnInput =
    "the router weight multiplies the input: scale hidden_states by it and pass topk_weights of 1";

constexpr std::array kPresets = {
    ModelPreset{"tiny", "tiny", {512, 192, 16, 4}, {}, "made up: runs in well under a second on a CPU", "", "megamoe"},
    ModelPreset{"flash-slice",
                "one of 8 ranks of DeepSeek-V4-Flash",
                {4096, 2048, 32, 6},
                {},
                "every rank has these 32 experts, on any number of ranks: for timing",
                "",
                "megamoe",
                true},
    ModelPreset{"pro-slice",
                "one of 8 ranks of DeepSeek-V4-Pro",
                {7168, 3072, 48, 6},
                {},
                "every rank has these 48 experts, on any number of ranks: for timing",
                "",
                "megamoe",
                true},
    ModelPreset{"deepseek-v3", "DeepSeek-V3 / R1 / V3.2", {7168, 2048, 256, 8}, {}, "", "", kSlime},
    ModelPreset{"deepseek-v4-flash", "DeepSeek-V4-Flash", {4096, 2048, 256, 6}, 10.0F, kMxfp4, "", kHuggingFace},
    ModelPreset{"deepseek-v4-pro", "DeepSeek-V4-Pro", {7168, 3072, 384, 6}, 10.0F, kMxfp4, "", kFlashInfer},
    ModelPreset{"deepseek-v4.1-flash",
                "DeepSeek-V4.1-Flash",
                {5120, 2304, 384, 6},
                {},
                "the published scales are 32x32 E8M0; here they are 128x128 FP32",
                "",
                kHuggingFace},
    ModelPreset{"dots.llm1", "dots.llm1", {4096, 1408, 128, 6}, {}, "", "", kHuggingFace},
    ModelPreset{"gemma-4",
                "Gemma-4 MoE",
                {2816, 704, 128, 8},
                {},
                "",
                "its experts use a GELU gate, and this layer computes SwiGLU (a SiLU gate) only",
                "vllm pull request 44818"},
    ModelPreset{"glm-4.5", "GLM-4.5 / 4.6", {5120, 1536, 160, 8}, {}, "", "", kSlime},
    ModelPreset{"glm-4.5-air", "GLM-4.5-Air", {4096, 1408, 128, 8}, {}, "", "", kSlime},
    ModelPreset{"glm-4.7-flash", "GLM-4.7-Flash", {2048, 1536, 64, 4}, {}, "", "", kSlime},
    ModelPreset{"glm-5", "GLM-5 / 5.1 / 5.2 / 5.3", {6144, 2048, 256, 8}, {}, "", "", kSlime},
    ModelPreset{"gpt-oss-120b",
                "gpt-oss-120b",
                {2880, 2880, 128, 4},
                {},
                "",
                "hidden 2880 is not a multiple of 128 (one FP8 scale block), and its experts have biases and another "
                "activation (alpha 1.702, up + 1)",
                kFlashInfer},
    ModelPreset{"gpt-oss-20b",
                "gpt-oss-20b",
                {2880, 2880, 32, 4},
                {},
                "",
                "hidden 2880 is not a multiple of 128 (one FP8 scale block), and its experts have biases and another "
                "activation (alpha 1.702, up + 1)",
                "published shape tables"},
    ModelPreset{"hunyuan-a13b", "Hunyuan-A13B", {4096, 3072, 64, 8}, {}, "", "", "published shape tables"},
    ModelPreset{"hunyuan-large", "Hunyuan-Large", {6400, 18304, 16, 1}, {}, "", "", kHuggingFace},
    ModelPreset{"kimi-k2", "Kimi-K2 / K2.6", {7168, 2048, 384, 8}, {}, "", "", kSlime},
    ModelPreset{"kimi-k3",
                "Kimi-K3",
                {3584, 3072, 896, 16},
                {},
                "",
                "its experts use an activation other than SwiGLU (SiTU), which this layer does not compute",
                "published configuration excerpt"},
    ModelPreset{
        "llama-4-maverick", "Llama-4-Maverick", {5120, 8192, 128, 1}, {}, kWeightOnInput, "", "published shape tables"},
    ModelPreset{
        "llama-4-scout", "Llama-4-Scout", {5120, 8192, 16, 1}, {}, kWeightOnInput, "", "published shape tables"},
    ModelPreset{"minimax-m2", "MiniMax-M2 / M2.5 / M2.7", {3072, 1536, 256, 8}, {}, "", "", kSlime},
    ModelPreset{"minimax-m3",
                "MiniMax-M3",
                {6144, 3072, 128, 4},
                {},
                "",
                "its experts use another activation (alpha 1.702, limit 7), and this layer computes plain SwiGLU only",
                "ROCm/aiter pull request 3755"},
    ModelPreset{"mixtral-8x7b", "Mixtral-8x7B", {4096, 14336, 8, 2}, {}, "", "", "published shape tables"},
    ModelPreset{"moonlight-16b", "Moonlight-16B", {2048, 1408, 64, 6}, {}, "", "", kSlime},
    ModelPreset{"qwen1.5-moe-a2.7b", "Qwen1.5-MoE-A2.7B", {2048, 1408, 60, 4}, {}, "", "", kHuggingFace},
    ModelPreset{"qwen3-235b-a22b", "Qwen3-235B-A22B", {4096, 1536, 128, 8}, {}, "", "", kSlime},
    ModelPreset{"qwen3-30b-a3b", "Qwen3-30B-A3B", {2048, 768, 128, 8}, {}, "", "", kSlime},
    ModelPreset{"qwen3-next-80b-a3b", "Qwen3-Next-80B-A3B", {2048, 512, 512, 10}, {}, "", "", kSlime},
    ModelPreset{"qwen3.5-35b-a3b", "Qwen3.5-35B-A3B", {2048, 512, 256, 8}, {}, "", "", kSlime},
    ModelPreset{"qwen3.5-397b", "Qwen3.5-397B", {4096, 1024, 512, 10}, {}, "", "", kFlashInfer},
    ModelPreset{"step-3.5-flash", "Step-3.5-Flash", {4096, 1280, 288, 8}, {}, "", "", kHuggingFace},
    ModelPreset{"trinity-large", "Trinity-Large", {3072, 3072, 256, 4}, {}, "", "", "published shape tables"},
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const ModelPreset> model_presets() { return kPresets; }

std::vector<std::string_view> nearest_models(std::string_view name, size_t count) {
  const std::string wanted = lower(name.substr(0, 64));
  std::vector<std::pair<size_t, std::string_view>> scored;
  for (const ModelPreset& preset : kPresets) {
    if (preset.refused()) continue;
    const bool contained = !wanted.empty() && preset.name.find(wanted) != std::string_view::npos;
    scored.emplace_back(contained ? 0 : edit_distance(wanted, preset.name), preset.name);
  }
  std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string_view> names;
  for (size_t i = 0; i < std::min(count, scored.size()); ++i) names.push_back(scored[i].second);
  return names;
}

Result<ModelPreset> find_model(std::string_view name) {
  const std::string wanted = lower(name);
  const auto* const found =
      std::find_if(kPresets.begin(), kPresets.end(), [&](const ModelPreset& preset) { return preset.name == wanted; });
  if (found == kPresets.end()) {
    std::string nearest;
    for (const std::string_view candidate : nearest_models(name, 3)) {
      nearest += (nearest.empty() ? "" : ", ") + std::string(candidate);
    }
    return Status(Code::kInvalidArgument, "models.find: the model must be a known preset, got '" +
                                              std::string(name.substr(0, 64)) + "'; the nearest names are " + nearest +
                                              " (megamoe models lists all)");
  }
  if (found->refused()) {
    return Status(Code::kNotSupported, "models.find: " + std::string(found->title) +
                                           " cannot be run: " + std::string(found->refusal) + ", got '" +
                                           std::string(found->name) + "'; megamoe models lists the models that can");
  }
  return *found;
}

}  // namespace megamoe::api
