// config.json of a model: only what a MoE layer needs, nothing guessed.
#include "io/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <utility>

#include "io/file.h"
#include "io/json_value.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

constexpr uint64_t kMaxConfigBytes = 4'000'000;
constexpr uint32_t kMaxExtent = 1u << 20;  // Of hidden and intermediate; products of two stay far below 2^64 bytes.
constexpr uint32_t kMaxLayers = 1u << 16;
constexpr uint32_t kIntermediateMultiple = 64;
constexpr std::array<std::string_view, 3> kExpertCountKeys = {"n_routed_experts", "num_experts", "num_local_experts"};

/// A JSON object whose values are asked for by key. Null counts as absent.
class Keys {
 public:
  Keys(const JsonValue& object, std::string_view where, std::string prefix)
      : object_(object), where_(where), prefix_(std::move(prefix)) {}

  const JsonValue* find(std::string_view key) const {
    const JsonValue* value = object_.find(key);
    return value == nullptr || value->kind == JsonValue::Kind::kNull ? nullptr : value;
  }

  Status bad(std::string_view key, std::string_view must, std::string_view got) const {
    return {Code::kBadFile, fmt::format("{}: {}{} must be {}, got {}", where_, prefix_, key, must, got)};
  }

  Status refused(std::string_view key, std::string_view must, std::string_view got, std::string_view advice) const {
    return {Code::kNotSupported,
            fmt::format("{}: {}{} must be {}, got {}; {}", where_, prefix_, key, must, got, advice)};
  }

  Status integer(std::string_view key, uint32_t min, uint32_t max, std::optional<uint32_t>& result) const {
    const JsonValue* value = find(key);
    if (value == nullptr) return {};
    if (value->kind != JsonValue::Kind::kUnsigned || value->unsigned_value < min || value->unsigned_value > max) {
      return bad(key, fmt::format("an integer from {} to {}", min, max), describe(*value));
    }
    result = static_cast<uint32_t>(value->unsigned_value);
    return {};
  }

  Status required_integer(std::string_view key, uint32_t max, uint32_t& result) const {
    std::optional<uint32_t> value;
    MEGAMOE_RETURN_IF_ERROR(integer(key, 1, max, value));
    if (!value.has_value()) return bad(key, "given, nothing is assumed in its place", "no such key");
    result = *value;
    return {};
  }

  Status positive_real(std::string_view key, std::optional<double>& result) const {
    const JsonValue* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_number() || !std::isfinite(value->real_value) || value->real_value <= 0) {
      return bad(key, "a positive number", describe(*value));
    }
    result = value->real_value;
    return {};
  }

 private:
  const JsonValue& object_;
  std::string_view where_;
  std::string prefix_;
};

Status read_num_experts(const Keys& keys, uint32_t& num_experts) {
  std::vector<std::string_view> present;
  for (const std::string_view key : kExpertCountKeys) {
    if (keys.find(key) != nullptr) present.push_back(key);
  }
  const std::string all = fmt::format("{}", fmt::join(kExpertCountKeys, " | "));
  if (present.empty()) return keys.bad(all, "given, nothing is assumed in its place", "none of these keys");
  if (present.size() > 1) return keys.bad(all, "given once", fmt::format("{}", fmt::join(present, " and ")));
  return keys.required_integer(present.front(), kMaxExperts, num_experts);
}

/// These families give the width of an expert as `intermediate_size`.
bool width_is_intermediate_size(std::string_view model_type) {
  return model_type == "mixtral" || model_type.starts_with("minimax") || model_type.starts_with("llama4");
}

Status read_intermediate(const Keys& keys, std::string_view model_type, uint32_t& intermediate) {
  const bool plain = keys.find("moe_intermediate_size") == nullptr && width_is_intermediate_size(model_type);
  const std::string_view key = plain ? "intermediate_size" : "moe_intermediate_size";
  MEGAMOE_RETURN_IF_ERROR(keys.required_integer(key, kMaxExtent, intermediate));
  if (intermediate % kIntermediateMultiple != 0) {
    return keys.refused(key, "a multiple of 64 (half an FP8 scale block)", std::to_string(intermediate),
                        "pad the experts with zeros");
  }
  return {};
}

Status read_activation(const Keys& keys, ModelConfig& config) {
  const JsonValue* activation = keys.find("hidden_act");
  if (activation != nullptr &&
      (activation->kind != JsonValue::Kind::kString || (activation->text != "silu" && activation->text != "swish"))) {
    return keys.refused("hidden_act", "\"silu\" (the layer runs SwiGLU)", describe(*activation),
                        "another activation would give wrong numbers");
  }
  std::optional<double> limit;
  MEGAMOE_RETURN_IF_ERROR(keys.positive_real("swiglu_limit", limit));
  if (!limit.has_value()) return {};
  config.swiglu_limit = static_cast<float>(*limit);
  if (!std::isfinite(*config.swiglu_limit) || *config.swiglu_limit <= 0) {
    return keys.bad("swiglu_limit", "a positive number in the range of FP32", fmt::format("{}", *limit));
  }
  return {};
}

Status read_quantization(const JsonValue& object, std::string_view where) {
  const Keys keys(object, where, "quantization_config.");
  const auto text_must_be = [&](std::string_view key, std::string_view wanted, bool required) -> Status {
    const JsonValue* value = keys.find(key);
    if (value == nullptr) {
      return required ? keys.bad(key, "given, nothing is assumed in its place", "no such key") : Status();
    }
    if (value->kind == JsonValue::Kind::kString && value->text == wanted) return {};
    return keys.refused(key, fmt::format("\"{}\"", wanted), describe(*value),
                        "convert the checkpoint to FP8 E4M3 in 128 x 128 blocks or to BF16");
  };
  MEGAMOE_RETURN_IF_ERROR(text_must_be("quant_method", "fp8", true));
  MEGAMOE_RETURN_IF_ERROR(text_must_be("fmt", "e4m3", false));
  MEGAMOE_RETURN_IF_ERROR(text_must_be("activation_scheme", "dynamic", false));
  const JsonValue* block = keys.find("weight_block_size");
  if (block == nullptr) return keys.bad("weight_block_size", "given, nothing is assumed in its place", "no such key");
  const auto is_128 = [](const JsonValue& value) {
    return value.kind == JsonValue::Kind::kUnsigned && value.unsigned_value == kScaleGroup;
  };
  if (block->kind != JsonValue::Kind::kArray || block->items.size() != 2 || !is_128(block->items[0]) ||
      !is_128(block->items[1])) {
    return keys.refused("weight_block_size", "[128, 128]", describe(*block),
                        "convert the checkpoint to 128 x 128 blocks or to BF16");
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view where) {
  const Result<JsonValue> root = parse_json_value(text, where);
  if (!root.ok()) return root.status();
  if (root->kind != JsonValue::Kind::kObject) {
    return Status(Code::kBadFile, fmt::format("{}: must be a JSON object, got {}", where, describe(root.value())));
  }
  const Keys keys(root.value(), where, "");
  ModelConfig config;
  if (const JsonValue* type = keys.find("model_type"); type != nullptr) {
    if (type->kind != JsonValue::Kind::kString) return keys.bad("model_type", "a string", describe(*type));
    config.model_type = type->text;
  }
  MEGAMOE_RETURN_IF_ERROR(keys.required_integer("hidden_size", kMaxExtent, config.shape.hidden));
  if (config.shape.hidden % kScaleGroup != 0) {
    return keys.refused("hidden_size", "a multiple of 128 (one FP8 scale block)", std::to_string(config.shape.hidden),
                        "pad hidden with zeros");
  }
  MEGAMOE_RETURN_IF_ERROR(read_num_experts(keys, config.shape.num_experts));
  MEGAMOE_RETURN_IF_ERROR(read_intermediate(keys, config.model_type, config.shape.intermediate));
  MEGAMOE_RETURN_IF_ERROR(keys.required_integer("num_experts_per_tok", kMaxTopK, config.shape.top_k));
  if (config.shape.top_k > config.shape.num_experts) {
    return keys.bad("num_experts_per_tok", fmt::format("at most the {} experts", config.shape.num_experts),
                    std::to_string(config.shape.top_k));
  }
  MEGAMOE_RETURN_IF_ERROR(keys.integer("num_hidden_layers", 1, kMaxLayers, config.num_layers));
  MEGAMOE_RETURN_IF_ERROR(keys.integer("n_shared_experts", 0, kMaxExperts, config.num_shared_experts));
  MEGAMOE_RETURN_IF_ERROR(keys.positive_real("routed_scaling_factor", config.routed_scaling_factor));
  MEGAMOE_RETURN_IF_ERROR(read_activation(keys, config));
  if (const JsonValue* quantization = keys.find("quantization_config"); quantization != nullptr) {
    if (quantization->kind != JsonValue::Kind::kObject) {
      return keys.bad("quantization_config", "an object", describe(*quantization));
    }
    MEGAMOE_RETURN_IF_ERROR(read_quantization(*quantization, where));
    config.quantized_fp8 = true;
  }
  return config;
}

Result<ModelConfig> read_model_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const Result<std::string> text = read_text_file(path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  return parse_model_config(text.value(), fmt::format("config.read: {}", printable(path, 1000)));
}

}  // namespace megamoe::io
