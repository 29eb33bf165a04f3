// Runs the exploration on one broken protocol. All instantiations lie in logic_mutants.cc.
#pragma once

#include "exploration.h"

namespace megamoe::test {

struct CaughtBy {
  std::string failure;  ///< Empty: nothing caught it.
  std::string config;
  Choices choices;
  uint64_t num_schedules = 0;
};

/// @param index  into kLogicMutants
CaughtBy explore_logic_mutant(size_t index);
/// The failure of one mutant under one schedule of one configuration.
std::string replay_logic_mutant(size_t index, const std::string& config, const Choices& choices);

}  // namespace megamoe::test
