// Work is streamed: while one source is late, every tile without its rows is finished.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "cpu_group.h"

namespace megamoe::test {
namespace {

using protocol::Signal;

/// What the machine of this test shares with the test.
struct Gate {
  uint32_t slow_rank = 0;
  protocol::Workspace layout;
  char* base = nullptr;
  uint64_t stride_bytes = 0;
  std::atomic<bool> open{false};
  std::atomic<uint32_t> num_held{0};  ///< Input blocks of the slow rank that wait at the gate.
  std::mutex mutex;
  std::vector<WordPlace> l1_tiles;  ///< In the order in which they finished.
} gate;

/// Holds back the input blocks of one rank; records when tiles of the first GEMM finish.
class GatedMachine : public cpu::Machine {
 public:
  template <Signal kSignal, class T>
  void store_release(T* word, std::type_identity_t<T> value) {
    if constexpr (kSignal == Signal::kInputFull) {
      if (place_of(word, gate.layout.input_full, gate.base, gate.stride_bytes).rank == gate.slow_rank) {
        ++gate.num_held;
        while (!gate.open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    cpu::Machine::store_release<kSignal>(word, value);
  }

  template <Signal kSignal>
  void add_release(uint32_t* word, uint32_t amount) {
    if constexpr (kSignal == Signal::kActsFull) {
      const std::lock_guard lock(gate.mutex);
      gate.l1_tiles.push_back(place_of(word, gate.layout.acts_full, gate.base, gate.stride_bytes));
    }
    cpu::Machine::add_release<kSignal>(word, amount);
  }
};

size_t num_finished() {
  const std::lock_guard lock(gate.mutex);
  return gate.l1_tiles.size();
}

constexpr uint32_t kNumRanks = 4, kSlowRank = 3, kBlockRows = 8;
constexpr MoeShape kShape{128, 128, 8, 1};  // one column tile in either GEMM

/// Every source sends 8 rows, one block, to each expert; the slow one only to the last expert of each rank.
std::vector<TestTokens> streaming_tokens() {
  std::vector<TestTokens> tokens;
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
    const bool slow = rank == kSlowRank;
    TestTokens mine = gen_tokens(kShape, (slow ? kShape.num_experts / 2 : kShape.num_experts) * kBlockRows, 40 + rank);
    for (uint32_t i = 0; i < mine.num_tokens; ++i) mine.topk_ids[i] = slow ? i / kBlockRows * 2 + 1 : i / kBlockRows;
    tokens.push_back(mine);
  }
  return tokens;
}

TEST(Streaming, TilesWithoutRowsOfALateSourceFinishBeforeItsRowsArrive) {
  const TestWeights weights = gen_weights(kShape, 9);
  const std::vector<TestTokens> tokens = streaming_tokens();
  LayerConfig config = small_config(kShape, kShape.num_experts * kBlockRows);
  config.block_rows = kBlockRows;
  // A block that still waits holds the thread that took it, so there are more threads than such blocks.
  config.num_threads = 6;
  config.unit_blocks = 1;
  config.lag_units = 16;
  config.token_ring_blocks = config.act_ring_blocks = 16;

  std::vector<RankOutput> expected;
  {
    CpuGroup<cpu::Machine> sound(config, kNumRanks, weights);
    expected = sound.forward(tokens);
    expect_matches_oracle(weights, std::nullopt, tokens, expected);
  }

  CpuGroup<GatedMachine> group(config, kNumRanks, weights);
  gate.slow_rank = kSlowRank;
  gate.layout = group.layout();
  gate.base = group.base();
  gate.stride_bytes = group.stride_bytes();

  // Each of 4 ranks has 2 experts; 3 punctual sources fill a block of each: 24 tiles. 4 more hold the slow rank's rows.
  constexpr size_t kNumPunctual = kNumRanks * 2 * 3, kNumSlow = kNumRanks;
  size_t finished_early = 0;
  std::jthread opener([&] {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (num_finished() < kNumPunctual && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (gate.num_held == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    finished_early = num_finished();
    gate.open = true;
  });
  const std::vector<RankOutput> outputs = group.forward(tokens);
  opener.join();

  EXPECT_EQ(finished_early, kNumPunctual) << "tiles that had finished when the slow rank's rows were released";
  EXPECT_EQ(num_finished(), kNumPunctual + kNumSlow);
  expect_all_ok(outputs);
  EXPECT_TRUE(same_bits(expected, outputs));
}

}  // namespace
}  // namespace megamoe::test
