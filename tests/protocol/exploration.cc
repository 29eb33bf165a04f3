// The search.
#include "exploration.h"

#include <algorithm>

namespace megamoe::test {

Exploration Explorer::explore(const ExplorationLimits& limits) {
  Exploration result;
  for (uint32_t depth = 0; depth <= limits.max_deviations && result.failure.empty(); ++depth) {
    Choices choices;
    const bool complete = visit(choices, depth, limits.max_schedules, result);
    if (complete && result.complete_depth + 1 >= depth) result.complete_depth = depth;
  }
  for (uint64_t seed = 1; seed <= limits.num_random && result.failure.empty(); ++seed) {
    Choices choices;
    choices.seed = seed;
    try_one(choices, result);
  }
  return result;
}

void Explorer::try_one(const Choices& choices, Exploration& result) {
  ++result.num_schedules;
  result.failure = model_.run(choices);
  if (!result.failure.empty()) result.failing = choices;
  if (choices.seed == 0 && choices.deviations.empty()) result.num_steps = model_.scheduler().num_steps();
}

bool Explorer::visit(Choices& choices, uint32_t more, uint64_t budget, Exploration& result) {
  if (more == 0) {
    try_one(choices, result);
    return true;
  }
  // A run without the further deviations shows where they can be.
  if (!model_.run(choices).empty()) return true;
  const uint32_t first = choices.deviations.empty() ? 1 : choices.deviations.back().step + 1;
  std::vector<Deviation> next;
  for (uint32_t step = first; step <= model_.scheduler().num_steps(); ++step)
    for (uint32_t agent = 0; agent < model_.scheduler().num_agents(); ++agent)
      if ((model_.scheduler().others_at(step) >> agent & 1) != 0) next.push_back({step, agent});
  // Where the budget does not reach for all, evenly spaced ones are tried.
  const uint64_t stride = core::ceil_div<uint64_t>(next.size() + 1, budget);
  bool complete = stride == 1;
  for (uint64_t i = choices.deviations.empty() ? 0 : first % stride; i < next.size(); i += stride) {
    choices.deviations.push_back(next[i]);
    complete &= visit(choices, more - 1, std::max<uint64_t>(1, budget * stride / next.size()), result);
    choices.deviations.pop_back();
    if (!result.failure.empty()) return false;
  }
  return complete;
}

}  // namespace megamoe::test
