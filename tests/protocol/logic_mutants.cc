// One model per mutant, by template.
#include "logic_mutants.h"

#include <utility>

#include "mutants.h"

namespace megamoe::test {
namespace {

template <size_t... kIndex>
Model::MakeRank maker_of(size_t index, std::index_sequence<kIndex...>) {
  constexpr std::array kMakers{&make_model_rank<kLogicMutants[kIndex]>...};
  return kMakers[index];
}

Model::MakeRank maker_of(size_t index) { return maker_of(index, std::make_index_sequence<kLogicMutants.size()>{}); }

}  // namespace

CaughtBy explore_logic_mutant(size_t index) {
  CaughtBy caught;
  for (const ModelConfig& config : model_configs()) {
    Explorer explorer(config, maker_of(index));
    ExplorationLimits limits;
    limits.max_schedules = 3000;
    limits.num_random = 1000;
    const Exploration exploration = explorer.explore(limits);
    caught.num_schedules += exploration.num_schedules;
    if (exploration.failure.empty()) continue;
    caught.failure = exploration.failure;
    caught.config = config.name;
    caught.choices = exploration.failing;
    break;
  }
  return caught;
}

std::string replay_logic_mutant(size_t index, const std::string& name, const Choices& choices) {
  for (const ModelConfig& config : model_configs())
    if (config.name == name) return Explorer(config, maker_of(index)).run(choices);
  return "no such configuration";
}

}  // namespace megamoe::test
