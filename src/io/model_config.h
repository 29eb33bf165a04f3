// config.json of a model: only what a MoE layer needs, nothing guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megamoe/shape.h"
#include "megamoe/status.h"

namespace megamoe::io {

struct ModelConfig {
  std::string model_type;  ///< Empty where the file has none.
  MoeShape shape;
  std::optional<uint32_t> num_layers;           ///< `num_hidden_layers`.
  std::optional<uint32_t> num_shared_experts;   ///< `n_shared_experts`.
  std::optional<float> swiglu_limit;            ///< Positive and finite.
  std::optional<double> routed_scaling_factor;  ///< Positive and finite. A property of the router, not of the experts.
  bool quantized_fp8 = false;                   ///< `quantization_config` present: FP8 in 128 x 128 blocks.
};

/// Parses config.json. kBadFile, naming the key: a missing key, a value of another kind or out of range. kNotSupported:
/// a quantisation, activation or size that the layer does not run. Null counts as absent.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view where);

/// Reads `folder`/config.json.
Result<ModelConfig> read_model_config(const std::string& folder);

}  // namespace megamoe::io
