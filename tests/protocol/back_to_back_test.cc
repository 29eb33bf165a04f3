// 10,000 calls on one handle, with nothing between them, give the bits that a fresh handle gives for each.
#include <cstdio>

#include "cpu_group.h"

namespace megamoe::test {
namespace {

constexpr MoeShape kShape{128, 64, 6, 2};
constexpr uint32_t kNumRanks = 3, kMaxTokens = 6;

/// 0 to 6 tokens; some calls send everything to one expert, some slots are masked, some ids come twice.
TestTokens random_tokens(uint64_t call, uint32_t rank) {
  const uint64_t draw = splitmix64(call * kNumRanks + rank);
  TestTokens tokens = gen_tokens(kShape, draw % (kMaxTokens + 1), draw % 0xffffff);
  const uint64_t kind = splitmix64(call) % 8;
  for (size_t i = 0; i < tokens.topk_ids.size(); ++i) {
    const uint64_t slot_draw = splitmix64(draw + i);
    if (kind == 0) tokens.topk_ids[i] = static_cast<int64_t>(call % kShape.num_experts);
    if (kind <= 2 && slot_draw % 4 == 0) tokens.topk_ids[i] = -1;
  }
  return tokens;
}

TEST(BackToBack, TenThousandCallsEqualAFreshHandleEach) {
  constexpr uint32_t kNumCalls = 10'000;
  const TestWeights weights = gen_weights(kShape, 21);
  LayerConfig config = small_config(kShape, kMaxTokens);
  config.block_rows = 8;
  config.unit_blocks = config.token_ring_blocks = config.act_ring_blocks = 1;
  std::vector<std::vector<TestTokens>> calls(kNumCalls);
  for (uint32_t call = 0; call < kNumCalls; ++call)
    for (uint32_t rank = 0; rank < kNumRanks; ++rank) calls[call].push_back(random_tokens(call, rank));

  CpuGroup<cpu::Machine> group(config, kNumRanks, weights);
  const auto outputs = group.forward_all(calls);
  for (uint32_t call = 0; call < kNumCalls; ++call) {
    CpuGroup<cpu::Machine> fresh(config, kNumRanks, weights);
    ASSERT_TRUE(same_bits(fresh.forward(calls[call]), outputs[call])) << "call " << call;
  }
}

}  // namespace
}  // namespace megamoe::test
