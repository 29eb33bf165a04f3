// From router logits to the experts of each token: scores, groups, choice, weights.
#include "routing/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "megamoe/shape.h"

namespace megamoe::routing {
namespace {

constexpr float kBelowAll = -std::numeric_limits<float>::infinity();

float sigmoid(float x) {
  if (x >= 0) return 1.0f / (1.0f + std::exp(-x));
  const float power = std::exp(x);
  return power / (1.0f + power);
}

float softplus(float x) { return (x > 0 ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

void scores_of(Scoring scoring, std::span<const float> logits, std::span<float> scores) {
  switch (scoring) {
    case Scoring::kSigmoid:
      std::transform(logits.begin(), logits.end(), scores.begin(), sigmoid);
      return;
    case Scoring::kSqrtSoftplus:
      std::transform(logits.begin(), logits.end(), scores.begin(), [](float x) { return std::sqrt(softplus(x)); });
      return;
    case Scoring::kSoftmax:
      break;
  }
  float highest = kBelowAll;
  for (const float logit : logits) highest = std::fmax(highest, logit);
  float sum = 0.0f;
  for (size_t expert = 0; expert < logits.size(); ++expert) {
    scores[expert] = std::exp(logits[expert] - highest);
    sum += scores[expert];
  }
  for (float& score : scores) score /= sum;
}

/// The `count` first of `order` become the items of the highest values, ties by index; a NaN is below everything.
void put_highest_first(std::span<const float> values, uint32_t count, std::vector<uint32_t>& order) {
  const auto key = [&](uint32_t idx) -> float {
    if (std::isnan(values[idx])) return kBelowAll;
    return values[idx];
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](uint32_t a, uint32_t b) {
    const float key_a = key(a);
    const float key_b = key(b);
    return key_a != key_b ? key_a > key_b : a < b;
  });
}

/// Works on one token at a time; keeps its scratch memory.
class Chooser {
 public:
  Chooser(const RouterConfig& config, std::span<const float> correction_bias)
      : config_(config), bias_(correction_bias), scores_(config.num_experts), choice_(config.num_experts) {}

  void choose(std::span<const float> logits, int64_t* ids, float* weights) {
    scores_of(config_.scoring, logits, scores_);
    if (config_.has_correction_bias) {
      for (size_t expert = 0; expert < choice_.size(); ++expert) choice_[expert] = scores_[expert] + bias_[expert];
    } else {
      // The scores rise with the logits, but far from 0 they round to one value where the logits still differ. Groups
      // are sums of scores.
      const bool grouped = config_.topk_groups < config_.num_groups;
      std::copy_n(grouped ? scores_.data() : logits.data(), choice_.size(), choice_.begin());
    }
    find_candidates();
    put_highest_first(choice_, config_.top_k, candidates_);
    for (uint32_t slot = 0; slot < config_.top_k; ++slot) {
      ids[slot] = candidates_[slot];
      weights[slot] = scores_[candidates_[slot]];
    }
    if (config_.renormalize) {
      float sum = 0.0f;
      for (uint32_t slot = 0; slot < config_.top_k; ++slot) sum += weights[slot];
      sum += config_.renormalize_epsilon;
      for (uint32_t slot = 0; slot < config_.top_k; ++slot) weights[slot] /= sum;
    }
    for (uint32_t slot = 0; slot < config_.top_k; ++slot) weights[slot] *= config_.scaling;
  }

 private:
  /// The experts of the chosen groups, ascending.
  void find_candidates() {
    candidates_.clear();
    if (config_.topk_groups == config_.num_groups) {
      for (uint32_t expert = 0; expert < config_.num_experts; ++expert) candidates_.push_back(expert);
      return;
    }
    const uint32_t group_size = config_.num_experts / config_.num_groups;
    group_scores_.resize(config_.num_groups);
    groups_.resize(config_.num_groups);
    for (uint32_t group = 0; group < config_.num_groups; ++group) {
      groups_[group] = group;
      group_scores_[group] = best_two(std::span(choice_).subspan(size_t{group} * group_size, group_size));
    }
    put_highest_first(group_scores_, config_.topk_groups, groups_);
    std::sort(groups_.begin(), groups_.begin() + config_.topk_groups);
    for (uint32_t place = 0; place < config_.topk_groups; ++place) {
      for (uint32_t member = 0; member < group_size; ++member) {
        candidates_.push_back(groups_[place] * group_size + member);
      }
    }
  }

  static float best_two(std::span<const float> values) {
    float first = kBelowAll;
    float second = kBelowAll;
    for (const float value : values) {
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    return first + second;
  }

  const RouterConfig& config_;
  std::span<const float> bias_;
  std::vector<float> scores_;
  std::vector<float> choice_;  ///< What the choice compares.
  std::vector<float> group_scores_;
  std::vector<uint32_t> groups_;
  std::vector<uint32_t> candidates_;
};

Status refuse(const std::string& setting, const std::string& must, const std::string& got) {
  return {Code::kInvalidArgument, "router.validate: " + setting + " must be " + must + ", got " + got +
                                      "; take the values of the model's config.json"};
}

}  // namespace

std::string_view name(Scoring scoring) {
  switch (scoring) {
    case Scoring::kSoftmax:
      return "softmax";
    case Scoring::kSigmoid:
      return "sigmoid";
    case Scoring::kSqrtSoftplus:
      return "sqrtsoftplus";
  }
  return "unknown";
}

Status validate(const RouterConfig& config) {
  const auto text = [](auto value) { return std::to_string(value); };
  if (config.num_experts < 1 || config.num_experts > kMaxExperts) {
    return refuse("num_experts", "1 to " + text(kMaxExperts), text(config.num_experts));
  }
  if (config.top_k < 1 || config.top_k > std::min(kMaxTopK, config.num_experts)) {
    return refuse("top_k", "1 to " + text(std::min(kMaxTopK, config.num_experts)), text(config.top_k));
  }
  if (config.num_groups < 1 || config.num_experts % config.num_groups != 0) {
    return refuse("num_groups", "a divisor of the " + text(config.num_experts) + " experts", text(config.num_groups));
  }
  if (config.topk_groups < 1 || config.topk_groups > config.num_groups) {
    return refuse("topk_groups", "1 to the " + text(config.num_groups) + " groups", text(config.topk_groups));
  }
  const uint32_t group_size = config.num_experts / config.num_groups;
  if (config.topk_groups < config.num_groups && group_size < 2) {
    return refuse("num_groups", "such that a group has two experts, whose scores are summed", text(config.num_groups));
  }
  if (config.topk_groups * group_size < config.top_k) {
    return refuse("topk_groups", "such that the chosen groups hold top_k = " + text(config.top_k) + " experts",
                  text(config.topk_groups) + " groups of " + text(group_size));
  }
  if (!std::isfinite(config.scaling) || config.scaling <= 0) {
    return refuse("scaling", "a positive number", text(config.scaling));
  }
  if (!(config.renormalize_epsilon >= 0) || !std::isfinite(config.renormalize_epsilon)) {
    return refuse("renormalize_epsilon", "zero or a positive number", text(config.renormalize_epsilon));
  }
  if (config.weight_on_input && config.top_k != 1) {
    return refuse("top_k", "1 where the weight multiplies the input, since a token enters the layer once",
                  text(config.top_k));
  }
  return {};
}

void choose_experts(const RouterConfig& config, std::span<const float> logits, std::span<const float> correction_bias,
                    std::span<int64_t> topk_ids, std::span<float> topk_weights) {
  Chooser chooser(config, correction_bias);
  const size_t num_tokens = logits.size() / config.num_experts;
  for (size_t token = 0; token < num_tokens; ++token) {
    chooser.choose(logits.subspan(token * config.num_experts, config.num_experts),
                   topk_ids.data() + token * config.top_k, topk_weights.data() + token * config.top_k);
  }
}

}  // namespace megamoe::routing
