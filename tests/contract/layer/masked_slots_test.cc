// A slot with id -1 is masked: no row, no use of its weight, no routing of what lies beyond the live tokens.
#include <cmath>
#include <limits>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class MaskedSlots : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, MaskedSlots, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{256, 256, 8, 4};
constexpr uint64_t kCapacity = 16;

/// Tagged tokens with these ids; weight 0.25 on live slots, NaN on masked ones.
TestTokens tokens_with_ids(std::vector<int64_t> ids, uint64_t first_tag) {
  TestTokens tokens = tag_tokens(kShape, ids.size() / kShape.top_k, first_tag);
  tokens.topk_ids = std::move(ids);
  for (size_t i = 0; i < tokens.topk_ids.size(); ++i)
    tokens.topk_weights[i] = tokens.topk_ids[i] < 0 ? std::numeric_limits<float>::quiet_NaN() : 0.25f;
  return tokens;
}

std::vector<TestTokens> partly_masked_tokens() {
  return {tokens_with_ids({0, 5, -1, 2, -1, -1, -1, -1, 7, -1, -1, -1, -1, 4, -1, 1, 3, 2, 1, 0}, 40),
          tokens_with_ids({-1, 6, -1, -1, -1, -1, -1, -1, 0, 1, 6, 7}, 45)};
}

/// Ids and weights as persistent buffers have them: rows past the live ones look valid and would be loud.
void add_stale_tail(TestTokens& tokens) {
  tokens.topk_ids.resize(kCapacity * kShape.top_k, 7);
  tokens.topk_weights.resize(kCapacity * kShape.top_k, 1e30f);
  tokens.hidden.resize(kCapacity * kShape.hidden, 0x3f80);
}

TEST_P(MaskedSlots, AreLeftOutAndTheStaleTailIsNeverRouted) {
  const TestWeights weights = tag_weights(kShape);
  LayerGroup group(config(kShape, kCapacity), 2, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = partly_masked_tokens();
  for (TestTokens& part : tokens) add_stale_tail(part);
  const std::vector<RankOutput> outputs = group.forward(tokens);
  expect_tag(kShape, tokens, outputs);

  std::vector<uint32_t> received;
  for (uint32_t rank = 0; rank < 2; ++rank)
    for (const uint32_t rows : group.layer(rank).last_report().rows_per_expert) received.push_back(rows);
  EXPECT_EQ(received, (std::vector<uint32_t>{3, 3, 2, 1, 1, 1, 2, 2}));
}

TEST_P(MaskedSlots, FullyMaskedTokensGivePlusZero) {
  const TestWeights weights = gen_weights(kShape, 3);
  LayerGroup group(config(kShape, kCapacity), 2, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = {gen_tokens(kShape, 5, 1), gen_tokens(kShape, 3, 2)};
  for (TestTokens& part : tokens) {
    part.topk_ids.assign(part.topk_ids.size(), -1);
    part.topk_weights.assign(part.topk_weights.size(), std::numeric_limits<float>::quiet_NaN());
  }
  const std::vector<RankOutput> outputs = group.forward(tokens);
  expect_all_ok(outputs);
  for (const RankOutput& output : outputs)
    for (const uint16_t bits : output.rows) ASSERT_EQ(bits, 0);
}

TEST_P(MaskedSlots, DoNotChangeTheLiveOnes) {
  // The same live slots, once packed to the front and once spread among masked ones.
  const TestWeights weights = gen_weights(kShape, 4);
  LayerGroup group(config(kShape, kCapacity), 2, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> packed = {gen_tokens(kShape, 6, 8), gen_tokens(kShape, 4, 9)};
  std::vector<TestTokens> spread = packed;
  for (size_t rank = 0; rank < packed.size(); ++rank) {
    for (uint64_t token = 0; token < packed[rank].num_tokens; ++token) {
      const uint64_t first = token * kShape.top_k;
      packed[rank].topk_ids[first + 2] = packed[rank].topk_ids[first + 3] = -1;
      spread[rank].topk_ids[first + 3] = spread[rank].topk_ids[first + 1];
      spread[rank].topk_weights[first + 3] = spread[rank].topk_weights[first + 1];
      spread[rank].topk_ids[first + 1] = spread[rank].topk_ids[first + 2] = -1;
    }
  }
  const std::vector<RankOutput> outputs = group.forward(packed);
  expect_matches_oracle(weights, std::nullopt, packed, outputs);
  expect_same_bits(outputs, group.forward(spread));
}

}  // namespace
}  // namespace megamoe::test
