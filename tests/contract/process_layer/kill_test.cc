// Ranks as processes that run the layer, one of them killed at a random moment: the others end soon, with an error that
// names it, and no call that says ok has wrong bits; or go on where it had been left out.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "megamoe/process_group.h"
#include "support/layer_group.h"
#include "support/temp_dir.h"

namespace megamoe::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kRanks = 4;
constexpr uint64_t kJoinNs = 3'000'000'000;  // a rank killed before it came can only be missed at this deadline
constexpr int kRightBits = 0, kSaidWhy = 10, kWrongBits = 20;

constexpr uint32_t kLeaver = 2;

struct Job {
  MoeShape shape{128, 64, 8, 2};
  TestWeights weights = gen_weights(shape, 3);
  std::vector<TestTokens> tokens = split_tokens(shape, gen_tokens(shape, 22, 4), kRanks);
  std::vector<RankOutput> expected;
  std::vector<RankOutput> expected_without;  ///< kLeaver
};

LayerConfig config_of(const Job& job) {
  LayerConfig config = small_config(job.shape, 8);
  config.timeout_ns = 30'000'000'000;  // a death must be noticed long before
  return config;
}

/// Runs calls until one fails or `num_calls` are done. What a rank process is for.
/// @param num_without  further calls, which leave kLeaver out; it dies while the others make them
int run_rank(const Job& job, uint32_t rank, const std::string& folder, uint32_t num_calls, uint32_t num_without) {
  const auto say = [&](const Status& status) {
    std::ofstream(folder + "/said_" + std::to_string(rank)) << status.message();
    return kSaidWhy;
  };
  auto group = join_process_group({rank, kRanks, "kill_test", folder + "/meet", kJoinNs});
  if (!group.ok()) return say(group.status());
  auto layer = MoeLayer::create(config_of(job), group.value());
  if (!layer.ok()) return say(layer.status());
  if (const Status status = layer->load_weights(rank_weights(job.weights, rank, kRanks)); !status.ok())
    return say(status);
  std::vector<uint16_t> output;
  for (uint32_t call = 0; call < num_calls; ++call) {
    const ForwardArgs args = forward_args(job.shape, job.tokens[rank], output);
    if (const Status status = layer->forward(args); !status.ok()) return say(status);
    if (output != job.expected[rank].rows) return kWrongBits;
  }
  if (num_without != 0 && rank == kLeaver) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others have left the last call with it
    kill(getpid(), SIGKILL);
  }
  for (uint32_t call = 0; call < num_without; ++call) {
    ForwardArgs args = forward_args(job.shape, job.tokens[rank], output);
    args.active_ranks[0] = (1u << kRanks) - 1 - (1u << kLeaver);
    if (const Status status = layer->forward(args); !status.ok()) return say(status);
    if (output != job.expected_without[rank].rows) return kWrongBits;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // before, while and after it dies
  }
  if (num_without == 0) return kRightBits;
  // A call that counts on the dead rank fails at once.
  return say(layer->forward(forward_args(job.shape, job.tokens[rank], output)));
}

std::vector<pid_t> start_ranks(const Job& job, const std::string& folder, uint32_t num_calls,
                               uint32_t num_without = 0) {
  std::vector<pid_t> pids;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) _exit(run_rank(job, rank, folder, num_calls, num_without));
    pids.push_back(pid);
  }
  return pids;
}

/// The exit status of a process that must end by itself; -1 and a kill where it does not.
int exit_of(pid_t pid, Clock::time_point deadline) {
  int status = 0;
  for (;;) {
    if (waitpid(pid, &status, WNOHANG) == pid) return status;
    if (Clock::now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  return -1;
}

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class ProcessLayer : public ::testing::Test {
 protected:
  void SetUp() override {
    LayerGroup group(config_of(job_), kRanks, job_.weights);
    expect_all_ok(group.created());
    job_.expected = group.forward(job_.tokens);
    expect_all_ok(job_.expected);
    job_.expected_without = group.forward_without({kLeaver}, job_.tokens);
    expect_all_ok(job_.expected_without);
  }
  Job job_;
};

TEST_F(ProcessLayer, GivesTheBitsOfThreads) {
  const TempDir folder;
  for (const pid_t pid : start_ranks(job_, folder.path(), 50)) {
    const int status = exit_of(pid, Clock::now() + std::chrono::seconds(60));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kRightBits);
  }
}

TEST_F(ProcessLayer, ARankThatIsLeftOutMayDie) {
  const TempDir folder;
  const std::vector<pid_t> pids = start_ranks(job_, folder.path(), 3, 150);
  const auto deadline = Clock::now() + std::chrono::seconds(25);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const int status = exit_of(pids[rank], deadline);
    if (rank == kLeaver) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
      continue;
    }
    const std::string said = read_file(folder.path() + "/said_" + std::to_string(rank));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kSaidWhy) << "rank " << rank << ": " << status;
    EXPECT_NE(said.find("active_ranks may only lose ranks until reset()"), std::string::npos) << said;
  }
}

TEST_F(ProcessLayer, AKilledRankNeverHangsTheOthersAndNeverSpoilsANumber) {
  constexpr int kRounds = 200;
  std::mt19937 random(20261);
  double slowest_s = 0;
  int num_named = 0;
  for (int round = 0; round < kRounds; ++round) {
    const TempDir folder;
    const std::vector<pid_t> pids = start_ranks(job_, folder.path(), 1'000'000);
    const uint32_t victim = random() % kRanks;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    kill(pids[victim], SIGKILL);
    const auto killed = Clock::now();
    int ignored = 0;
    waitpid(pids[victim], &ignored, 0);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const int status = exit_of(pids[rank], killed + std::chrono::seconds(40));
      ASSERT_TRUE(WIFEXITED(status)) << "round " << round << ": rank " << rank << " hung or crashed";
      ASSERT_EQ(WEXITSTATUS(status), kSaidWhy)
          << "round " << round << ": rank " << rank << " must have failed with a reason";
      const std::string said = read_file(folder.path() + "/said_" + std::to_string(rank));
      ASSERT_FALSE(said.empty());
      if (said.find("rank " + std::to_string(victim)) != std::string::npos) ++num_named;
    }
    slowest_s = std::max(slowest_s, std::chrono::duration<double>(Clock::now() - killed).count());
  }
  std::printf(
      "%d kills: every survivor ended by itself, %d of %d errors name the dead rank, %.2f s at most after the death\n",
      kRounds, num_named, kRounds * static_cast<int>(kRanks - 1), slowest_s);
  EXPECT_EQ(num_named, kRounds * static_cast<int>(kRanks - 1));
  EXPECT_LT(slowest_s, 3.0 + 2.0 + 2.0);  // the deadline of joining, 2 s to report, and room for a loaded machine
}

}  // namespace
}  // namespace megamoe::test
