// Ranks that are absent, slow or crowded: the others end in time, say who is missing, and can go on after reset().
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "cpu_group.h"

namespace megamoe::test {
namespace {

using protocol::Signal;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr MoeShape kShape{256, 192, 8, 2};

std::vector<TestTokens> some_tokens(uint32_t num_ranks, uint64_t seed) {
  std::vector<TestTokens> tokens;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) tokens.push_back(gen_tokens(kShape, 8 + 5 * rank, seed + rank));
  return tokens;
}

void expect_blames(const Status& status, const std::string& signal, uint32_t missing) {
  EXPECT_TRUE(status.code() == Code::kTimeout || status.code() == Code::kPeerFailed) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("for signal " + signal + "["));
  EXPECT_THAT(status.message(), HasSubstr("from rank " + std::to_string(missing) + " "));
}

TEST(Liveness, ARankThatNeverCallsIsNamedInTimeAndResetHeals) {
  constexpr uint32_t kNumRanks = 4;
  constexpr milliseconds kDeadline{300};
  const TestWeights weights = gen_weights(kShape, 3);
  const auto tokens = some_tokens(kNumRanks, 50);
  LayerGroup group(small_config(kShape, 32), kNumRanks, weights);
  expect_all_ok(group.created());
  for (uint32_t absent = 0; absent < kNumRanks; ++absent) {  // reset() must also clear what the round before left
    std::vector<Status> first(kNumRanks), second(kNumRanks);
    const auto start = steady_clock::now();
    (void)on_each_rank(kNumRanks, [&](uint32_t rank) {
      if (rank == absent) return Status{};
      std::vector<uint16_t> output;
      ForwardArgs args = group.args(rank, tokens[rank], output);
      args.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(kDeadline).count());
      first[rank] = group.layer(rank).forward(args);
      return Status{};
    });
    EXPECT_LT(steady_clock::now() - start, kDeadline + seconds(2));
    for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
      if (rank == absent) continue;
      expect_blames(first[rank], "header", absent);
      std::vector<uint16_t> output;
      EXPECT_EQ(group.layer(rank).forward(group.args(rank, tokens[rank], output)).code(), Code::kPoisoned);
    }
    expect_all_ok(group.reset());
    const auto outputs = group.forward(tokens);
    expect_all_ok(outputs);
    expect_matches_oracle(weights, std::nullopt, tokens, outputs);
  }
}

TEST(Liveness, ARankThatIsLeftOutIsNeitherWaitedForNorTouched) {
  constexpr uint32_t kNumRanks = 4, kLeftOut = 2, kNumCalls = 50;
  LayerConfig config = small_config(kShape, 32);
  config.timeout_ns = 20'000'000'000;
  const TestWeights weights = gen_weights(kShape, 3);
  CpuGroup<cpu::Machine> group(config, kNumRanks, weights);
  const auto tokens = some_tokens(kNumRanks, 50);
  for (const RankOutput& output : group.forward(tokens)) EXPECT_TRUE(output.status.ok()) << output.status.message();
  const char* workspace = group.base() + kLeftOut * group.stride_bytes();
  const std::vector<char> before(workspace, workspace + group.layout().bytes);
  const auto start = steady_clock::now();
  std::vector<RankOutput> outputs(kNumRanks);
  expect_all_ok(on_each_rank(kNumRanks, [&](uint32_t rank) {
    for (uint32_t call = 0; call < kNumCalls && rank != kLeftOut; ++call) {
      const Status status = group.forward(rank, tokens[rank], outputs[rank], 0b1111 - (1u << kLeftOut));
      if (!status.ok()) return status;
    }
    return Status{};
  }));
  EXPECT_LT(steady_clock::now() - start, seconds(20));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), workspace)) << "somebody wrote to the rank that was left out";
}

TEST(Liveness, ARankThatComesSecondsLateIsWaitedFor) {
  constexpr uint32_t kNumRanks = 3, kLate = 1;
  const MoeShape shape{256, 192, 6, 2};
  const TestWeights weights = gen_weights(shape, 3);
  LayerGroup group(small_config(shape, 32), kNumRanks, weights);
  expect_all_ok(group.created());
  const auto tokens = split_tokens(shape, gen_tokens(shape, 40, 2), kNumRanks);
  const auto outputs = group.forward(tokens, [&](uint32_t rank, ForwardArgs&) {
    if (rank == kLate) std::this_thread::sleep_for(seconds(3));
  });
  expect_all_ok(outputs);
  expect_matches_oracle(weights, std::nullopt, tokens, outputs);
}

TEST(Liveness, ManyMoreThreadsThanCoresProgress) {
  constexpr uint32_t kNumRanks = 8;
  const TestWeights weights = gen_weights(kShape, 3);
  const auto tokens = some_tokens(kNumRanks, 70);
  LayerConfig config = small_config(kShape, 64);
  config.num_threads = 4;
  config.block_rows = 8;
  config.unit_blocks = config.token_ring_blocks = config.act_ring_blocks = 1;
  LayerGroup group(config, kNumRanks, weights);
  expect_all_ok(group.created());
  for (int call = 0; call < 5; ++call) {
    const auto outputs = group.forward(tokens);
    expect_all_ok(outputs);
    expect_matches_oracle(weights, std::nullopt, tokens, outputs);
  }
}

/// One rank dawdles before it raises one signal.
struct Slowness {
  Signal signal = Signal::kCount;
  uint32_t rank = 0;
  milliseconds delay{0};
  char* base = nullptr;
  uint64_t stride_bytes = 0;

  void before(Signal raised, const void* word) const {
    if (raised != signal) return;
    const auto offset = static_cast<uint64_t>(static_cast<const char*>(word) - base);
    if (offset / stride_bytes == rank) std::this_thread::sleep_for(delay);
  }
} slowness;

class SlowMachine : public cpu::Machine {
 public:
  template <Signal kSignal, class T>
  void store_release(T* word, std::type_identity_t<T> value) {
    slowness.before(kSignal, word);
    cpu::Machine::store_release<kSignal>(word, value);
  }
  template <Signal kSignal>
  uint32_t add_acq_rel(uint32_t* word, uint32_t amount) {
    slowness.before(kSignal, word);
    return cpu::Machine::add_acq_rel<kSignal>(word, amount);
  }
};

void expect_slow_rank_is_blamed(Signal slow_signal, const std::string& blamed_signal) {
  constexpr uint32_t kNumRanks = 4, kSlow = 2;
  constexpr milliseconds kDeadline{400};
  const TestWeights weights = gen_weights(kShape, 3);
  LayerConfig config = small_config(kShape, 64);
  config.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(kDeadline).count());
  config.block_rows = 8;  // small rings: some sources also wait for room, and must not be what is reported
  config.unit_blocks = config.token_ring_blocks = config.act_ring_blocks = 1;
  CpuGroup<SlowMachine> group(config, kNumRanks, weights);
  slowness = {slow_signal, kSlow, milliseconds(1500), group.base(), group.stride_bytes()};
  const auto outputs = group.forward(some_tokens(kNumRanks, 90));
  slowness.signal = Signal::kCount;
  for (uint32_t rank = 0; rank < kNumRanks; ++rank)
    if (rank != kSlow) expect_blames(outputs[rank].status, blamed_signal, kSlow);
  EXPECT_FALSE(outputs[kSlow].status.ok());
}

TEST(Blame, TokensThatAreNotQuantisedAreTheSourcesFault) {
  expect_slow_rank_is_blamed(Signal::kInputFull, "input_full");
}

TEST(Blame, RowsThatDoNotComeBackAreTheOwnersFault) { expect_slow_rank_is_blamed(Signal::kActsEmpty, "expert_done"); }

}  // namespace
}  // namespace megamoe::test
