// Systematic search through schedules: all that deviate from the default order in up to n places, then random ones.
#pragma once

#include <vector>

#include "model.h"

namespace megamoe::test {

struct Exploration {
  uint64_t num_schedules = 0;
  uint32_t num_steps = 0;       ///< Of the default schedule.
  uint32_t complete_depth = 0;  ///< All schedules with up to so many deviations were run.
  std::string failure;          ///< Empty, or the first failure.
  Choices failing;              ///< Its schedule.
};

struct ExplorationLimits {
  uint32_t max_deviations = 2;
  uint64_t max_schedules = 1'000'000;  ///< About so many of each number of deviations.
  uint64_t num_random = 0;
};

class Explorer {
 public:
  explicit Explorer(const ModelConfig& config, Model::MakeRank make_rank = &make_model_rank<>)
      : model_(config, make_rank) {}

  std::string run(const Choices& choices) { return model_.run(choices); }

  Exploration explore(const ExplorationLimits& limits);

 private:
  void try_one(const Choices& choices, Exploration& result);
  /// Runs the schedules with exactly `more` further deviations, about `budget` of them.
  /// @return whether these were all
  bool visit(Choices& choices, uint32_t more, uint64_t budget, Exploration& result);

  Model model_;
};

/// The small configurations; between them they reach every signal in every way.
const std::vector<ModelConfig>& model_configs();

}  // namespace megamoe::test
