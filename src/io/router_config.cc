// Which router a model has: known by its model_type, since config files rarely say it and never completely.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "io/model_config.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

enum class Rule : uint8_t {
  kDeepSeekV3,           ///< Sigmoid, correction bias, groups.
  kDots,                 ///< The same; without the keys of groups there are none.
  kDeepSeekV4,           ///< sqrt(softplus), correction bias, no groups, always renormalised.
  kSoftmax,              ///< Softmax, top-k, renormalised where norm_topk_prob says so.
  kSoftmaxRenormalized,  ///< The same, always renormalised.
  kMiniMaxM2,            ///< Sigmoid, correction bias, always renormalised.
  kLlama4,               ///< The sigmoid of the chosen logit, on the expert's input.
};

struct Family {
  std::string_view model_type;
  Rule rule;
};

constexpr std::array kFamilies = {
    Family{"deepseek_v3", Rule::kDeepSeekV3},
    Family{"deepseek_v32", Rule::kDeepSeekV3},
    Family{"kimi_k2", Rule::kDeepSeekV3},
    Family{"glm4_moe", Rule::kDeepSeekV3},
    Family{"glm4_moe_lite", Rule::kDeepSeekV3},
    Family{"glm4v_moe_text", Rule::kDeepSeekV3},
    Family{"glm_moe_dsa", Rule::kDeepSeekV3},
    Family{"dots1", Rule::kDots},
    Family{"deepseek_v4", Rule::kDeepSeekV4},
    Family{"qwen2_moe", Rule::kSoftmax},
    Family{"qwen3_moe", Rule::kSoftmax},
    Family{"qwen3_next", Rule::kSoftmax},
    Family{"qwen3_vl_moe_text", Rule::kSoftmax},
    Family{"qwen3_omni_moe_text", Rule::kSoftmax},
    Family{"qwen3_5_moe", Rule::kSoftmaxRenormalized},
    Family{"qwen3_5_moe_text", Rule::kSoftmaxRenormalized},
    Family{"mixtral", Rule::kSoftmaxRenormalized},
    Family{"minimax", Rule::kSoftmaxRenormalized},
    Family{"minimax_m2", Rule::kMiniMaxM2},
    Family{"llama4", Rule::kLlama4},
    Family{"llama4_text", Rule::kLlama4},
};

constexpr float kDeepSeekEpsilon = 1e-20f;

/// Takes settings of one config; every refusal names the key and the model.
class Settings {
 public:
  Settings(const ModelConfig& config, std::string_view where) : config_(config), where_(where) {}

  template <class T>
  Status require(std::string_view key, const std::optional<T>& value) const {
    if (value.has_value()) return {};
    return {Code::kBadFile, fmt::format("{}: {} must be given, the router of {} has it and nothing is assumed in its "
                                        "place, got no such key; add it to config.json",
                                        where_, key, config_.model_type)};
  }

  /// A key that may be absent, since the model implies its value, and may not contradict that.
  Status agree(std::string_view key, const std::optional<std::string>& value, std::string_view wanted) const {
    if (!value.has_value() || *value == wanted) return {};
    return {Code::kNotSupported,
            fmt::format("{}: {} must be \"{}\" where the router is that of {}, got \"{}\"; give topk_ids and "
                        "topk_weights with the tokens",
                        where_, key, wanted, config_.model_type, printable(*value))};
  }

  /// Models that always renormalise say so, or nothing.
  Status always_renormalized() const {
    if (config_.norm_topk_prob.value_or(true)) return {};
    return {Code::kNotSupported,
            fmt::format("{}: norm_topk_prob must be true where the router is that of {}, got false; give topk_ids and "
                        "topk_weights with the tokens",
                        where_, config_.model_type)};
  }

 private:
  const ModelConfig& config_;
  std::string_view where_;
};

Status read_deepseek_v3(const ModelConfig& config, const Settings& settings, routing::RouterConfig& router) {
  MEGAMOE_RETURN_IF_ERROR(settings.agree("scoring_func", config.scoring_func, "sigmoid"));
  MEGAMOE_RETURN_IF_ERROR(settings.agree("topk_method", config.topk_method, "noaux_tc"));
  MEGAMOE_RETURN_IF_ERROR(settings.require("n_group", config.num_groups));
  MEGAMOE_RETURN_IF_ERROR(settings.require("topk_group", config.topk_groups));
  MEGAMOE_RETURN_IF_ERROR(settings.require("norm_topk_prob", config.norm_topk_prob));
  MEGAMOE_RETURN_IF_ERROR(settings.require("routed_scaling_factor", config.routed_scaling_factor));
  router.scoring = routing::Scoring::kSigmoid;
  router.has_correction_bias = true;
  router.num_groups = *config.num_groups;
  router.topk_groups = *config.topk_groups;
  router.renormalize = *config.norm_topk_prob;
  router.renormalize_epsilon = kDeepSeekEpsilon;
  router.scaling = static_cast<float>(*config.routed_scaling_factor);
  return {};
}

Status read_deepseek_v4(const ModelConfig& config, const Settings& settings, routing::RouterConfig& router) {
  MEGAMOE_RETURN_IF_ERROR(settings.require("scoring_func", config.scoring_func));
  MEGAMOE_RETURN_IF_ERROR(settings.agree("scoring_func", config.scoring_func, "sqrtsoftplus"));
  MEGAMOE_RETURN_IF_ERROR(settings.agree("topk_method", config.topk_method, "noaux_tc"));
  MEGAMOE_RETURN_IF_ERROR(settings.require("routed_scaling_factor", config.routed_scaling_factor));
  MEGAMOE_RETURN_IF_ERROR(settings.always_renormalized());
  router.scoring = routing::Scoring::kSqrtSoftplus;
  router.has_correction_bias = true;
  router.renormalize = true;
  router.renormalize_epsilon = kDeepSeekEpsilon;
  router.scaling = static_cast<float>(*config.routed_scaling_factor);
  return {};
}

}  // namespace

Result<routing::RouterConfig> router_config(const ModelConfig& config, std::string_view where) {
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const Family& known) { return known.model_type == config.model_type; });
  if (family == kFamilies.end()) {
    std::vector<std::string> known;
    known.reserve(kFamilies.size());
    for (const Family& each : kFamilies) known.emplace_back(each.model_type);
    return Status(Code::kNotSupported,
                  fmt::format("{}: model_type must be that of a known router ({}), got \"{}\"; give topk_ids and "
                              "topk_weights with the tokens",
                              where, fmt::join(known, ", "), printable(config.model_type)));
  }
  const Settings settings(config, where);
  routing::RouterConfig router;
  router.num_experts = config.shape.num_experts;
  router.top_k = config.shape.top_k;
  switch (family->rule) {
    case Rule::kDeepSeekV3:
      MEGAMOE_RETURN_IF_ERROR(read_deepseek_v3(config, settings, router));
      break;
    case Rule::kDots: {
      ModelConfig ungrouped = config;
      if (!config.num_groups && !config.topk_groups) ungrouped.num_groups = ungrouped.topk_groups = 1;
      MEGAMOE_RETURN_IF_ERROR(read_deepseek_v3(ungrouped, settings, router));
      break;
    }
    case Rule::kDeepSeekV4:
      MEGAMOE_RETURN_IF_ERROR(read_deepseek_v4(config, settings, router));
      break;
    case Rule::kSoftmax:
      MEGAMOE_RETURN_IF_ERROR(settings.agree("scoring_func", config.scoring_func, "softmax"));
      MEGAMOE_RETURN_IF_ERROR(settings.require("norm_topk_prob", config.norm_topk_prob));
      router.renormalize = *config.norm_topk_prob;
      break;
    case Rule::kSoftmaxRenormalized:
      MEGAMOE_RETURN_IF_ERROR(settings.agree("scoring_func", config.scoring_func, "softmax"));
      MEGAMOE_RETURN_IF_ERROR(settings.always_renormalized());
      router.renormalize = true;
      break;
    case Rule::kMiniMaxM2:
      MEGAMOE_RETURN_IF_ERROR(settings.always_renormalized());
      MEGAMOE_RETURN_IF_ERROR(settings.agree("scoring_func", config.scoring_func, "sigmoid"));
      router.scoring = routing::Scoring::kSigmoid;
      router.has_correction_bias = true;
      router.renormalize = true;
      break;
    case Rule::kLlama4:
      router.scoring = routing::Scoring::kSigmoid;
      router.weight_on_input = true;
      break;
  }
  if (const Status status = routing::validate(router); !status.ok()) {
    return Status(Code::kBadFile, fmt::format("{}: {}", where, status.message()));
  }
  return router;
}

}  // namespace megamoe::io
