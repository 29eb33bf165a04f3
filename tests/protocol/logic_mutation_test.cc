// Every way of breaking the protocol's logic must be found by the exploration; prints what found it.
#include <gtest/gtest.h>

#include <cstdio>

#include "logic_mutants.h"
#include "mutants.h"

namespace megamoe::test {
namespace {

TEST(Mutation, EveryLogicMutantIsCaughtAndItsScheduleReplays) {
  std::printf("%-34s  %s\n", "mutant", "caught by (schedules tried)");
  for (size_t i = 0; i < kLogicMutants.size(); ++i) {
    const std::string mutant = to_string(kLogicMutants[i]);
    const CaughtBy caught = explore_logic_mutant(i);
    std::printf("%-34s  exploration (%llu), '%s|%s': %.90s\n", mutant.c_str(),
                static_cast<unsigned long long>(caught.num_schedules), caught.config.c_str(),
                caught.choices.text().c_str(), caught.failure.empty() ? "NOT CAUGHT" : caught.failure.c_str());
    EXPECT_NE(caught.failure, "") << mutant << " goes unseen";
    const Choices printed = Choices::parse(caught.choices.text());
    EXPECT_EQ(replay_logic_mutant(i, caught.config, printed), caught.failure) << mutant << " does not replay";
  }
}

}  // namespace
}  // namespace megamoe::test
