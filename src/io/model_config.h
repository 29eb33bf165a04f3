// config.json of a model: only what a MoE layer needs, nothing guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megamoe/shape.h"
#include "megamoe/status.h"
#include "routing/router.h"

namespace megamoe::io {

/// How `quantization_config` says that weights are stored.
enum class Quantization : uint8_t {
  kNone = 0,
  kFp8Blocks,  ///< `fp8`: E4M3 in 128 x 128 blocks.
  kMxfp4,      ///< `mxfp4`: E2M1 with one power of two for 32 columns.
};

struct ModelConfig {
  std::string model_type;  ///< Empty where the file has none.
  MoeShape shape;
  std::optional<uint32_t> num_layers;           ///< `num_hidden_layers`.
  std::optional<uint32_t> num_shared_experts;   ///< `n_shared_experts`.
  std::optional<uint32_t> shared_intermediate;  ///< `shared_expert_intermediate_size`.
  std::optional<float> swiglu_limit;            ///< Positive and finite.
  std::optional<double> routed_scaling_factor;  ///< Positive and finite. A property of the router, not of the experts.
  Quantization quantization = Quantization::kNone;
  bool fp4_experts = false;  ///< `expert_dtype` is "fp4": the routed experts are MXFP4 whatever the rest is.

  // Of the router. Whether a model needs one of them is router_config()'s to say.
  std::optional<std::string> scoring_func;
  std::optional<std::string> topk_method;
  std::optional<bool> norm_topk_prob;
  std::optional<uint32_t> num_groups;   ///< `n_group`.
  std::optional<uint32_t> topk_groups;  ///< `topk_group`.

  bool quantized_fp8() const { return quantization == Quantization::kFp8Blocks; }
  /// Of all shared experts together, by the keys alone; 0 where they count none.
  uint64_t total_shared_intermediate() const {
    if (is_llama4()) return shape.intermediate;
    if (num_shared_experts.value_or(0) > 0) return uint64_t{*num_shared_experts} * shape.intermediate;
    return shared_intermediate.value_or(0);
  }
  bool is_llama4() const { return model_type.starts_with("llama4"); }
};

/// Parses config.json; where the model is the text part of a larger one, its `text_config`. kBadFile, naming the key: a
/// missing key, a value of another kind or out of range. kNotSupported: a model, quantisation, activation or size that
/// the layer does not run. Null counts as absent.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view where);

/// Reads `folder`/config.json.
Result<ModelConfig> read_model_config(const std::string& folder);

/// The router that `model_type` has, with the settings of its config. kBadFile naming a key that is missing or
/// contradicts the model; kNotSupported for a model whose router is not known here.
Result<routing::RouterConfig> router_config(const ModelConfig& config, std::string_view where);

}  // namespace megamoe::io
