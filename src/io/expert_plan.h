// The tensors of all experts of one layer, found and checked before any is read.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "io/expert_names.h"
#include "io/model_config.h"
#include "io/weight_source.h"
#include "megamoe/status.h"

namespace megamoe::io {

class ExpertPlan {
 public:
  ExpertPlan(const Checkpoint& checkpoint, const ModelConfig& config, uint32_t layer, const ExpertNaming& naming)
      : checkpoint_(checkpoint), config_(config), layer_(layer), naming_(naming) {}

  /// One status for everything that is missing, unknown or not as it must be. `names`: of all tensors, sorted.
  Status check(const std::vector<std::string_view>& names, std::string_view where);

  const ExpertNaming& naming() const { return naming_; }
  const Source& source(uint32_t expert, Projection which) const {
    return sources_[size_t{expert} * kNumProjections + static_cast<size_t>(which)];
  }

 private:
  void check_names(const std::vector<std::string_view>& names);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  uint32_t layer_;
  ExpertNaming naming_;
  std::vector<Source> sources_;
  Problems problems_;
};

}  // namespace megamoe::io
