// The tensors of all experts of one layer, found and checked before any is read.
#include "io/expert_plan.h"

#include <fmt/format.h>

namespace megamoe::io {

Status ExpertPlan::check(const std::vector<std::string_view>& names, std::string_view where) {
  check_names(names);
  const MoeShape& shape = config_.shape;
  sources_.resize(size_t{shape.num_experts} * kNumProjections);
  const bool is_per_expert = naming_.packing == Packing::kPerExpert;
  for (uint32_t expert = 0; expert < shape.num_experts; ++expert) {
    for (size_t idx = 0; idx < kNumProjections; ++idx) {
      const auto which = static_cast<Projection>(idx);
      Source& source = sources_[size_t{expert} * kNumProjections + idx];
      MatrixRequest request;
      request.weight_name = naming_.weight_name(layer_, expert, which);
      request.scale_name = naming_.scale_name(layer_, expert, which);
      request.extent = extent_of(shape.hidden, shape.intermediate, which);
      request.packing = naming_.packing;
      request.which = which;
      request.expert = expert;
      request.num_experts = shape.num_experts;
      // Two tensors hold everything of all experts: what is wrong with them is said once.
      Problems repeated;
      const bool is_first = is_per_expert || (expert == 0 && which != Projection::kUp);
      find_matrix(checkpoint_, config_, request, source, is_first ? problems_ : repeated);
    }
  }
  return problems_.status(
      where, fmt::format("layer {} must have the weights (FP8 ones with their scales) of exactly {} experts", layer_,
                         shape.num_experts));
}

/// A tensor under the experts' prefix that would be ignored might be one that matters.
void ExpertPlan::check_names(const std::vector<std::string_view>& names) {
  const std::string prefix = naming_.prefix(layer_);
  for (const std::string_view name : names_with_prefix(names, prefix)) {
    ExpertTensorName parsed;
    if (!parse_expert_tensor(naming_, name.substr(prefix.size()), parsed)) {
      problems_.unknown.emplace_back(name);
    } else if (parsed.expert >= config_.shape.num_experts) {
      problems_.beyond.emplace_back(name);
    }
  }
}

}  // namespace megamoe::io
