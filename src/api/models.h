// Published models whose MoE layer has a confirmed shape: what `--model NAME` means to the command line and benchmarks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/shape.h"
#include "megamoe/status.h"

namespace megamoe::api {

/// The routed experts of one layer of a published model.
struct ModelPreset {
  std::string_view name;       ///< Lower case, as given to --model.
  std::string_view title;      ///< As its authors write it.
  MoeShape shape;              ///< As published; of refused models too.
  std::optional<float> clamp;  ///< SwiGLU clamp of the model, where it has one.
  std::string_view note;       ///< What a user of its checkpoint should know; may be empty.
  std::string_view refusal;    ///< Why the layer cannot stand for this model; empty where it can.
  std::string_view source;     ///< Where the shape was read.
  bool per_rank = false;       ///< shape.num_experts is the number on each rank, whatever the number of ranks.

  bool refused() const { return !refusal.empty(); }
};

/// All presets, those that are no published model first, then by name.
std::span<const ModelPreset> model_presets();

/// The preset called `name` (letter case ignored). kInvalidArgument listing the nearest names where there is none;
/// kNotSupported with the reason where the model is refused.
Result<ModelPreset> find_model(std::string_view name);

/// The names nearest to `name` by edits, best first, refused models left out.
std::vector<std::string_view> nearest_models(std::string_view name, size_t count);

}  // namespace megamoe::api
