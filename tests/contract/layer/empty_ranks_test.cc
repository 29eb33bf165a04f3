// Ranks without tokens still take part: null pointers, nothing written, nobody waits for them.
#include <chrono>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class EmptyRanks : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, EmptyRanks, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{256, 256, 16, 2};
constexpr uint32_t kRanks = 4;

std::vector<TestTokens> tokens_of(const std::vector<uint64_t>& counts, uint64_t seed) {
  std::vector<TestTokens> tokens;
  for (const uint64_t count : counts) tokens.push_back(gen_tokens(kShape, count, ++seed));
  return tokens;
}

/// Idle ranks, one busy rank, nobody busy, a rank that receives nothing, everything masked.
std::vector<std::vector<TestTokens>> uneven_calls() {
  std::vector<std::vector<TestTokens>> calls = {tokens_of({0, 6, 6, 6}, 100), tokens_of({6, 0, 0, 0}, 200),
                                                tokens_of({0, 0, 0, 0}, 300), tokens_of({6, 6, 6, 6}, 400),
                                                tokens_of({4, 4, 4, 4}, 500)};
  for (TestTokens& part : calls[3])
    for (int64_t& id : part.topk_ids) id %= 12;
  for (TestTokens& part : calls[4]) part.topk_ids.assign(part.topk_ids.size(), -1);
  return calls;
}

TEST_P(EmptyRanks, EveryMixOfIdleRanksIsRightAndStaysRightOverFiftyRounds) {
  constexpr int kRounds = 50;
  const TestWeights weights = gen_weights(kShape, 21);
  LayerGroup group(config(kShape, 8), kRanks, weights);
  expect_all_ok(group.created());
  const std::vector<std::vector<TestTokens>> calls = uneven_calls();
  std::vector<std::vector<RankOutput>> first;
  for (const auto& tokens : calls) {
    first.push_back(group.forward(tokens));
    expect_matches_oracle(weights, std::nullopt, tokens, first.back());
  }
  EXPECT_TRUE(first[2][0].rows.empty());

  std::vector<std::vector<TestTokens>> sequence;
  for (int round = 0; round < kRounds; ++round) sequence.insert(sequence.end(), calls.begin(), calls.end());
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::vector<RankOutput>> outputs = group.forward_sequence(sequence);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (size_t i = 0; i < outputs.size(); ++i) expect_same_bits(first[i % calls.size()], outputs[i]);
  EXPECT_LT(seconds.count() / static_cast<double>(sequence.size()), 1.0);
}

TEST_P(EmptyRanks, ARankThatReceivesNothingReportsNoRows) {
  const TestWeights weights = gen_weights(kShape, 21);
  LayerGroup group(config(kShape, 8), kRanks, weights);
  expect_all_ok(group.created());
  expect_all_ok(group.forward(uneven_calls()[3]));
  EXPECT_EQ(group.layer(3).last_report().rows_per_expert, std::vector<uint32_t>(4, 0));
}

TEST_P(EmptyRanks, OneRankMayHaveNoTokens) {
  const TestWeights weights = gen_weights(kShape, 21);
  LayerGroup group(config(kShape, 8), 1, weights);
  expect_all_ok(group.created());
  expect_all_ok(group.forward(tokens_of({0}, 1)));
  const std::vector<TestTokens> some = tokens_of({3}, 1);
  expect_matches_oracle(weights, std::nullopt, some, group.forward(some));
}

}  // namespace
}  // namespace megamoe::test
