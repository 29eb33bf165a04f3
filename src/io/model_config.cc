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

  Status string(std::string_view key, std::optional<std::string>& result) const {
    const JsonValue* value = find(key);
    if (value == nullptr) return {};
    if (value->kind != JsonValue::Kind::kString) return bad(key, "a string", describe(*value));
    result = value->text;
    return {};
  }

  Status boolean(std::string_view key, std::optional<bool>& result) const {
    const JsonValue* value = find(key);
    if (value == nullptr) return {};
    if (value->kind != JsonValue::Kind::kBoolean) return bad(key, "true or false", describe(*value));
    result = value->boolean;
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

Status read_shape(const Keys& keys, ModelConfig& config) {
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
  return {};
}

/// Models whose experts compute something else although `hidden_act` says silu.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kOtherExperts = {{
    {"gpt_oss", "its experts have biases and another activation (alpha 1.702, up + 1)"},
    {"minimax_m3", "its experts have another activation (alpha 1.702)"},
}};

Status read_activation(const Keys& keys, ModelConfig& config) {
  for (const auto& [model_type, reason] : kOtherExperts) {
    if (!config.model_type.starts_with(model_type)) continue;
    return keys.refused("model_type", "that of a model whose experts compute SwiGLU",
                        fmt::format("\"{}\"", printable(config.model_type)),
                        fmt::format("{}, which this layer does not compute", reason));
  }
  const JsonValue* activation = keys.find("hidden_act");
  if (activation != nullptr &&
      (activation->kind != JsonValue::Kind::kString || (activation->text != "silu" && activation->text != "swish"))) {
    return keys.refused("hidden_act", "\"silu\" (the layer runs SwiGLU)", describe(*activation),
                        "another activation would give wrong numbers");
  }
  for (const std::string_view key : {"swiglu_alpha", "swiglu_beta"}) {
    if (const JsonValue* value = keys.find(key); value != nullptr) {
      return keys.refused(key, "absent (the layer runs plain SwiGLU)", describe(*value),
                          "another activation would give wrong numbers");
    }
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

/// "\"modelopt\" (quant_algo \"NVFP4\")": the method, and what says more about it.
std::string describe_method(const Keys& keys, const JsonValue& method) {
  std::string text = describe(method);
  for (const std::string_view key : {"quant_algo", "format", "bits", "w_bit"}) {
    if (const JsonValue* value = keys.find(key); value != nullptr)
      text += fmt::format(" ({} {})", key, describe(*value));
  }
  return text;
}

Status read_fp8_blocks(const Keys& keys) {
  const auto text_must_be = [&](std::string_view key, std::string_view wanted, std::string_view alias) -> Status {
    const JsonValue* value = keys.find(key);
    if (value == nullptr) return {};
    if (value->kind == JsonValue::Kind::kString && (value->text == wanted || value->text == alias)) return {};
    return keys.refused(key, fmt::format("\"{}\"", wanted), describe(*value),
                        "convert the checkpoint to FP8 E4M3 in 128 x 128 blocks or to BF16");
  };
  MEGAMOE_RETURN_IF_ERROR(text_must_be("fmt", "e4m3", "float8_e4m3fn"));
  MEGAMOE_RETURN_IF_ERROR(text_must_be("activation_scheme", "dynamic", "dynamic"));
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

Status read_quantization(const JsonValue& value, std::string_view where, Quantization& quantization) {
  if (value.kind != JsonValue::Kind::kObject) {
    return Keys(value, where, "").bad("quantization_config", "an object", describe(value));
  }
  const Keys keys(value, where, "quantization_config.");
  const JsonValue* method = keys.find("quant_method");
  if (method == nullptr) return keys.bad("quant_method", "given, nothing is assumed in its place", "no such key");
  if (method->kind == JsonValue::Kind::kString && method->text == "mxfp4") {
    quantization = Quantization::kMxfp4;
    return {};
  }
  if (method->kind == JsonValue::Kind::kString && method->text == "fp8") {
    quantization = Quantization::kFp8Blocks;
    return read_fp8_blocks(keys);
  }
  return keys.refused("quant_method", "\"fp8\" or \"mxfp4\"", describe_method(keys, *method),
                      "convert the checkpoint to FP8 E4M3 in 128 x 128 blocks or to BF16");
}

Status read_router(const Keys& keys, ModelConfig& config) {
  MEGAMOE_RETURN_IF_ERROR(keys.string("scoring_func", config.scoring_func));
  MEGAMOE_RETURN_IF_ERROR(keys.string("topk_method", config.topk_method));
  MEGAMOE_RETURN_IF_ERROR(keys.boolean("norm_topk_prob", config.norm_topk_prob));
  MEGAMOE_RETURN_IF_ERROR(keys.integer("n_group", 0, kMaxExperts, config.num_groups));
  MEGAMOE_RETURN_IF_ERROR(keys.integer("topk_group", 0, kMaxExperts, config.topk_groups));
  return keys.positive_real("routed_scaling_factor", config.routed_scaling_factor);
}

/// The part of the document that describes the language model.
const JsonValue& language_model(const JsonValue& root, bool& is_part) {
  const JsonValue* part = root.find("text_config");
  is_part = root.find("hidden_size") == nullptr && part != nullptr && part->kind == JsonValue::Kind::kObject;
  return is_part ? *part : root;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view where) {
  const Result<JsonValue> root = parse_json_value(text, where);
  if (!root.ok()) return root.status();
  if (root->kind != JsonValue::Kind::kObject) {
    return Status(Code::kBadFile, fmt::format("{}: must be a JSON object, got {}", where, describe(root.value())));
  }
  bool is_part = false;
  const JsonValue& model = language_model(root.value(), is_part);
  const Keys keys(model, where, is_part ? "text_config." : "");
  ModelConfig config;
  std::optional<std::string> model_type;
  MEGAMOE_RETURN_IF_ERROR(keys.string("model_type", model_type));
  if (!model_type.has_value()) MEGAMOE_RETURN_IF_ERROR(Keys(root.value(), where, "").string("model_type", model_type));
  config.model_type = model_type.value_or("");
  MEGAMOE_RETURN_IF_ERROR(read_activation(keys, config));
  MEGAMOE_RETURN_IF_ERROR(read_shape(keys, config));
  MEGAMOE_RETURN_IF_ERROR(keys.integer("num_hidden_layers", 1, kMaxLayers, config.num_layers));
  MEGAMOE_RETURN_IF_ERROR(keys.integer("n_shared_experts", 0, kMaxExperts, config.num_shared_experts));
  MEGAMOE_RETURN_IF_ERROR(keys.integer("shared_expert_intermediate_size", 0, kMaxExtent, config.shared_intermediate));
  MEGAMOE_RETURN_IF_ERROR(read_router(keys, config));
  std::optional<std::string> expert_dtype;
  MEGAMOE_RETURN_IF_ERROR(keys.string("expert_dtype", expert_dtype));
  config.fp4_experts = expert_dtype == "fp4";
  const JsonValue* quantization = keys.find("quantization_config");
  if (quantization == nullptr && is_part) quantization = Keys(root.value(), where, "").find("quantization_config");
  if (quantization != nullptr) MEGAMOE_RETURN_IF_ERROR(read_quantization(*quantization, where, config.quantization));
  return config;
}

Result<ModelConfig> read_model_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const Result<std::string> text = read_text_file(path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  return parse_model_config(text.value(), fmt::format("config.read: {}", printable(path, 1000)));
}

}  // namespace megamoe::io
