// Every token to one rank or one expert, and a real, very uneven vector of counts.
#include <numeric>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Skew : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Skew, ::testing::ValuesIn(backend_names()), backend_label);

/// The oracle on every `step`-th token only.
void expect_sample_matches(const TestWeights& weights, const std::vector<TestTokens>& tokens,
                           const std::vector<RankOutput>& outputs, uint64_t step) {
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::vector<TestTokens> single =
        split_tokens(weights.shape, tokens[rank], static_cast<uint32_t>(tokens[rank].num_tokens));
    for (uint64_t token = rank; token < single.size(); token += step) {
      RankOutput row = outputs[rank];
      row.rows = row_of(weights.shape, outputs[rank], token);
      expect_matches_oracle(weights, std::nullopt, {single[token]}, {row});
    }
  }
}

std::vector<uint32_t> received_rows(LayerGroup& group) {
  std::vector<uint32_t> rows;
  for (uint32_t rank = 0; rank < group.num_ranks(); ++rank)
    for (const uint32_t count : group.layer(rank).last_report().rows_per_expert) rows.push_back(count);
  return rows;
}

TEST_P(Skew, AllTokensMayGoToTheExpertsOfOneRank) {
  constexpr MoeShape kShape{512, 256, 16, 6};
  constexpr uint32_t kTokens = 256;
  const TestWeights tag = tag_weights(kShape);
  LayerGroup group(config(kShape, kTokens), 2, tag);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = {tag_tokens(kShape, kTokens), tag_tokens(kShape, kTokens, 60)};
  for (TestTokens& part : tokens)
    for (size_t slot = 0; slot < part.topk_ids.size(); ++slot) part.topk_ids[slot] = static_cast<int64_t>(slot % 6);
  expect_tag(kShape, tokens, group.forward(tokens));
  std::vector<uint32_t> expected(16, 0);
  std::fill_n(expected.begin(), 6, 2 * kTokens);
  EXPECT_EQ(received_rows(group), expected);
}

TEST_P(Skew, AllTokensMayGoToOneExpert) {
  constexpr MoeShape kShape{512, 256, 16, 1};
  constexpr uint32_t kTokens = 256;
  const TestWeights weights = gen_weights(kShape, 12);
  LayerGroup group(config(kShape, kTokens), 2, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = {gen_tokens(kShape, kTokens, 1), gen_tokens(kShape, kTokens, 2)};
  for (TestTokens& part : tokens) part.topk_ids.assign(kTokens, 0);
  expect_sample_matches(weights, tokens, group.forward(tokens), 8);
  std::vector<uint32_t> expected(16, 0);
  expected[0] = 2 * kTokens;
  EXPECT_EQ(received_rows(group), expected);
}

TEST_P(Skew, ACountVectorOfARealModelIsRight) {
  constexpr MoeShape kShape{512, 256, 16, 1};
  const std::vector<uint32_t> counts = {4001, 1425, 0, 0, 0, 0, 0, 571, 503, 0, 26, 12, 1232, 0, 0, 224};
  const uint32_t num_tokens = std::accumulate(counts.begin(), counts.end(), 0u);
  ASSERT_EQ(num_tokens, 7994u);
  std::vector<int64_t> ids;
  for (size_t expert = 0; expert < counts.size(); ++expert) ids.insert(ids.end(), counts[expert], int64_t(expert));
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[splitmix64(77 + i) % i]);

  const TestWeights weights = tag_weights(kShape);
  LayerGroup group(config(kShape, num_tokens), 1, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = {tag_tokens(kShape, num_tokens)};
  tokens[0].topk_ids = ids;
  expect_tag(kShape, tokens, group.forward(tokens));
  EXPECT_EQ(received_rows(group), counts);
}

}  // namespace
}  // namespace megamoe::test
