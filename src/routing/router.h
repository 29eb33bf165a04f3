// From router logits to the experts of each token: every published rule is a choice of these few settings.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::routing {

/// From an expert's logit to its score.
enum class Scoring : uint8_t {
  kSoftmax = 0,   ///< Over all experts, before any is chosen.
  kSigmoid,       ///< Of each logit alone.
  kSqrtSoftplus,  ///< sqrt(log(1 + exp(logit))).
};

/// "softmax", "sigmoid", "sqrtsoftplus".
std::string_view name(Scoring scoring);

/// One router. The experts of a token are the top_k with the highest score (plus correction bias, where there is one)
/// inside the chosen groups; their weights come from the scores without the bias.
struct RouterConfig {
  uint32_t num_experts = 0;
  uint32_t top_k = 0;
  Scoring scoring = Scoring::kSoftmax;
  bool has_correction_bias = false;  ///< Added to the scores for the choice alone.
  uint32_t num_groups = 1;           ///< Equal runs of experts; a group counts as much as the sum of its best two.
  uint32_t topk_groups = 1;          ///< Groups from which experts may be chosen.
  bool renormalize = false;          ///< Weights of a token are divided by their sum + renormalize_epsilon.
  float renormalize_epsilon = 0.0f;
  float scaling = 1.0f;          ///< Multiplies the weights, last.
  bool weight_on_input = false;  ///< The weight multiplies the expert's input instead of its output (Llama-4).
};

/// kInvalidArgument naming the setting that cannot be.
Status validate(const RouterConfig& config);

/// Chooses for each of T tokens. Experts stand in the order of their score for the choice, the highest first; equal
/// scores, and equal groups, in the order of their index. A NaN score is below every other one, so that the top_k ids
/// are distinct and in range whatever the logits are.
/// @param config           valid
/// @param logits           [T][num_experts]
/// @param correction_bias  [num_experts]; empty without has_correction_bias
/// @param topk_ids         [T][top_k]
/// @param topk_weights     [T][top_k]
void choose_experts(const RouterConfig& config, std::span<const float> logits, std::span<const float> correction_bias,
                    std::span<int64_t> topk_ids, std::span<float> topk_weights);

}  // namespace megamoe::routing
