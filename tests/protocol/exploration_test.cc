// The sound protocol under every schedule with few deviations and under many random ones. A failure prints the command
// that replays its schedule.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "exploration.h"

namespace megamoe::test {
namespace {

class Exploring : public testing::TestWithParam<size_t> {};

TEST_P(Exploring, NoScheduleGoesWrong) {
  const ModelConfig& config = model_configs()[GetParam()];
  const bool smallest = GetParam() == 0, slow = config.absent_rank >= 0;
  ExplorationLimits limits;
  limits.max_schedules = smallest ? 1'000'000 : slow ? 4'000 : 25'000;
  limits.num_random = slow ? 500 : 3'000;
  const Exploration result = Explorer(config).explore(limits);
  EXPECT_EQ(result.failure, "") << "replay with --schedule='" << config.name << "|" << result.failing.text() << "'";
  EXPECT_GE(result.complete_depth, smallest ? 2u : 1u);
  std::printf("%s: %llu schedules of about %u steps, all with up to %u deviations\n", config.name,
              static_cast<unsigned long long>(result.num_schedules), result.num_steps, result.complete_depth);
}

INSTANTIATE_TEST_SUITE_P(Configs, Exploring, testing::Range(size_t{0}, model_configs().size()));

TEST(Scheduler, ChoicesSurviveBeingPrinted) {
  for (const char* text : {"default", "seed 77", "17:2 90:0"}) EXPECT_EQ(Choices::parse(text).text(), text);
}

TEST(Scheduler, TheSameChoicesGiveTheSameRun) {
  std::vector<std::string> traces;
  for (const char* choices : {"seed 5", "seed 5", "default"}) {
    std::string trace;
    Scheduler scheduler;
    for (const char* agent : {"a", "b", "c"})
      scheduler.add_agent(agent, [&trace, &scheduler, agent] {
        for (int i = 0; i < 20; ++i) {
          scheduler.step();
          trace += agent;
        }
      });
    EXPECT_EQ(scheduler.run(Choices::parse(choices)), "");
    traces.push_back(trace);
  }
  EXPECT_EQ(traces[0], traces[1]);
  EXPECT_NE(traces[0], traces[2]);
}

TEST(Scheduler, ReportsADeadlockAndUnwindsEveryAgent) {
  int unwound = 0;
  struct Guard {
    int& count;
    ~Guard() { ++count; }
  };
  Scheduler scheduler;
  for (const char* agent : {"a", "b"})
    scheduler.add_agent(agent, [&] {
      const Guard guard{unwound};
      scheduler.wait_until("what nobody does", [] { return false; });
    });
  EXPECT_EQ(scheduler.run({}), "deadlock: a waits for what nobody does[0]; b waits for what nobody does[0];");
  EXPECT_EQ(unwound, 2);
}

/// "config|choices"
int replay(const std::string& text) {
  const size_t bar = text.find('|');
  for (const ModelConfig& config : model_configs()) {
    if (bar == std::string::npos || text.substr(0, bar) != config.name) continue;
    const std::string failure = Explorer(config).run(Choices::parse(text.substr(bar + 1)));
    std::printf("%s\n", failure.empty() ? "nothing goes wrong" : failure.c_str());
    return failure.empty() ? 0 : 1;
  }
  std::fprintf(stderr, "--schedule must be 'configuration|choices', got '%s'\n", text.c_str());
  return 2;
}

}  // namespace
}  // namespace megamoe::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr const char* kReplay = "--schedule=";
  if (argc > 1 && std::strncmp(argv[1], kReplay, std::strlen(kReplay)) == 0)
    return megamoe::test::replay(argv[1] + std::strlen(kReplay));
  return RUN_ALL_TESTS();
}
