// The same expert in several slots of one token: every slot counts, and capacity is counted in slots.
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class DuplicateExperts : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, DuplicateExperts, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{256, 256, 8, 8};
constexpr uint64_t kTokens = 8;

/// All tokens of all ranks choose their own expert `token mod 8` in every slot.
std::vector<TestTokens> plain_tokens(uint32_t num_ranks) {
  std::vector<TestTokens> tokens;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    tokens.push_back(tag_tokens(kShape, kTokens, 30 + rank * kTokens));
    for (uint64_t slot = 0; slot < kTokens * kShape.top_k; ++slot)
      tokens.back().topk_ids[slot] = static_cast<int64_t>(slot % kShape.num_experts);
  }
  return tokens;
}

void set_row(TestTokens& tokens, uint64_t token, const std::vector<int64_t>& ids, const std::vector<float>& weights) {
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    tokens.topk_ids[token * kShape.top_k + slot] = ids[slot];
    tokens.topk_weights[token * kShape.top_k + slot] = weights[slot];
  }
}

TEST_P(DuplicateExperts, OneTokenMayNameOneExpertInAllSlots) {
  const TestWeights weights = tag_weights(kShape);
  for (const uint32_t ranks : {1u, 2u}) {
    LayerGroup group(config(kShape, kTokens), ranks, weights);
    expect_all_ok(group.created());
    std::vector<TestTokens> tokens = plain_tokens(ranks);
    for (TestTokens& part : tokens) set_row(part, 3, std::vector<int64_t>(8, 0), std::vector<float>(8, 0.125f));
    expect_tag(kShape, tokens, group.forward(tokens));
  }
}

TEST_P(DuplicateExperts, EverySlotCountsWithItsOwnWeight) {
  const TestWeights weights = tag_weights(kShape);
  for (const uint32_t ranks : {1u, 2u}) {
    LayerGroup group(config(kShape, kTokens), ranks, weights);
    expect_all_ok(group.created());
    std::vector<TestTokens> tokens = plain_tokens(ranks);
    for (TestTokens& part : tokens)
      set_row(part, 5, {3, 3, 5, 5, 5, 1, 1, 1}, {.1f, .2f, .05f, .15f, .1f, .2f, .1f, .1f});
    const std::vector<RankOutput> outputs = group.forward(tokens);
    // Each slot's row is rounded to BF16 on its own, so three slots may be 1.5 ulp of their part off: still 2 in all.
    expect_tag(kShape, tokens, outputs);
    EXPECT_NEAR(tag_expected(kShape, tokens[0], 5, 1) / tag_expected(kShape, tokens[0], 5, 3), 0.4 / 0.3, 1e-6);
  }
}

TEST_P(DuplicateExperts, AnExpertMayReceiveMoreRowsThanThereAreTokens) {
  const TestWeights weights = tag_weights(kShape);
  for (const uint32_t ranks : {1u, 2u}) {
    LayerGroup group(config(kShape, kTokens), ranks, weights);
    expect_all_ok(group.created());
    std::vector<TestTokens> tokens = plain_tokens(ranks);
    for (TestTokens& part : tokens) part.topk_ids.assign(part.topk_ids.size(), 0);
    expect_tag(kShape, tokens, group.forward(tokens));
    EXPECT_EQ(group.layer(0).last_report().rows_per_expert[0], ranks * kTokens * kShape.top_k);
  }
}

}  // namespace
}  // namespace megamoe::test
