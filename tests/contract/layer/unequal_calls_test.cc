// Ranks that make a different number of calls: a timeout that names who is missing, then reset() and all is well.
#include "support/backend_test.h"
#include "support/placed_calls.h"

namespace megamoe::test {
namespace {

class UnequalCalls : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, UnequalCalls, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{128, 64, 12, 2};
constexpr uint64_t kShortNs = 300'000'000;

TEST_P(UnequalCalls, TheRankThatDidNotComeIsNamedAndResetRepairs) {
  const TestWeights weights = gen_weights(kShape, 6);
  LayerConfig layer_config = config(kShape, 16);
  layer_config.timeout_ns = 30'000'000'000;
  LayerGroup group(layer_config, 3, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = {gen_tokens(kShape, 9, 1), gen_tokens(kShape, 1, 2),
                                          gen_tokens(kShape, 16, 3)};
  const std::vector<RankOutput> right = group.forward(tokens);
  expect_matches_oracle(weights, std::nullopt, tokens, right);

  // Ranks 0 and 2 believe in one more round than rank 1.
  PlacedCalls calls(GetParam());
  const std::vector<Status> statuses = on_each_rank(3, [&](uint32_t rank) -> Status {
    if (rank == 1) return {};
    std::vector<uint16_t> output;
    ForwardArgs args = group.args(rank, tokens[rank], output);
    args.timeout_ns = kShortNs;
    return calls.forward(group.layer(rank), args);
  });
  int num_timeouts = 0;
  for (const uint32_t rank : {0u, 2u}) {
    const Status& status = statuses[rank];
    num_timeouts += status.code() == Code::kTimeout;
    EXPECT_TRUE(status.code() == Code::kTimeout || status.code() == Code::kPeerFailed) << status.message();
    EXPECT_NE(status.message().find("from rank 1 "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("in call 2 for signal "), std::string::npos) << status.message();
  }
  EXPECT_GE(num_timeouts, 1);

  // Until reset() nothing runs, on the absent rank neither.
  std::vector<RankOutput> poisoned = group.forward(tokens);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_FALSE(poisoned[rank].status.ok()) << "rank " << rank;
  EXPECT_EQ(poisoned[0].status.code(), Code::kPoisoned) << poisoned[0].status.message();
  EXPECT_NE(poisoned[0].status.message().find("reset()"), std::string::npos) << poisoned[0].status.message();
  expect_all_ok(group.reset());
  expect_same_bits(right, group.forward(tokens));
  expect_same_bits(right, group.forward(tokens));
}

TEST_P(UnequalCalls, EqualRoundsWithEmptyRestsAreRight) {
  // What a caller does instead: all ranks make as many calls as the longest batch needs, some of them empty.
  constexpr uint32_t kCapacity = 64;
  const TestWeights weights = gen_weights(kShape, 6);
  LayerGroup group(config(kShape, kCapacity), 2, weights);
  expect_all_ok(group.created());
  const std::pair<uint64_t, uint64_t> batches[] = {{65, 1}, {192, 0}, {0, 193}, {64, 64}, {1, 130}};
  for (const auto& [first, second] : batches) {
    const std::vector<TestTokens> whole = {gen_tokens(kShape, first, 1), gen_tokens(kShape, second, 2)};
    const uint32_t rounds = static_cast<uint32_t>((std::max(first, second) + kCapacity - 1) / kCapacity);
    std::vector<std::vector<TestTokens>> calls(rounds, std::vector<TestTokens>(2));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const std::vector<TestTokens> parts = split_tokens(kShape, whole[rank], rounds);
      for (uint32_t round = 0; round < rounds; ++round) calls[round][rank] = parts[round];
    }
    const std::vector<std::vector<RankOutput>> outputs = group.forward_sequence(calls);
    for (uint32_t round = 0; round < rounds; ++round)
      expect_matches_oracle(weights, std::nullopt, calls[round], outputs[round]);
  }
}

}  // namespace
}  // namespace megamoe::test
