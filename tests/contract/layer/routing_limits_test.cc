// Top-k from 1 to 32 and up to 896 experts are exact; beyond the limits creation is refused by name.
#include <cmath>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class RoutingLimits : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, RoutingLimits, ::testing::ValuesIn(backend_names()), backend_label);

/// Every token has K distinct experts, and all experts are used.
std::vector<TestTokens> spread_tokens(const MoeShape& shape, uint64_t num_tokens, uint32_t num_ranks) {
  TestTokens all = tag_tokens(shape, num_tokens);
  for (uint64_t token = 0; token < num_tokens; ++token)
    for (uint32_t slot = 0; slot < shape.top_k; ++slot)
      all.topk_ids[token * shape.top_k + slot] =
          static_cast<int64_t>((token * 7 + slot * (shape.num_experts / shape.top_k)) % shape.num_experts);
  return split_tokens(shape, all, num_ranks);
}

TEST_P(RoutingLimits, EveryTopKUpTo32IsExact) {
  for (const uint32_t top_k : {1u, 2u, 6u, 8u, 9u, 10u, 16u, 22u, 32u}) {
    SCOPED_TRACE("top-k " + std::to_string(top_k));
    const MoeShape shape{128, 64, 64, top_k};
    const TestWeights weights = tag_weights(shape);
    LayerGroup group(config(shape, 16), 2, weights);
    expect_all_ok(group.created());
    const std::vector<TestTokens> tokens = spread_tokens(shape, 31, 2);
    expect_tag(shape, tokens, group.forward(tokens));
  }
}

TEST_P(RoutingLimits, ATokenMayUseAllExperts) {
  const MoeShape shape{256, 64, 8, 8};
  const TestWeights weights = tag_weights(shape);
  LayerGroup group(config(shape, 16), 2, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = spread_tokens(shape, 20, 2);
  expect_tag(shape, tokens, group.forward(tokens));
}

TEST_P(RoutingLimits, BeyondThemCreationIsRefusedByName) {
  const auto refusal = [](const MoeShape& shape) { return MoeLayer::plan(config(shape, 8), 1).status(); };
  const std::pair<MoeShape, const char*> cases[] = {
      {{256, 64, 8, 9}, "top_k must not exceed num_experts (8), got 9"},
      {{256, 64, 64, 33}, "top_k must be between 1 and 32, got 33"},
      {{256, 64, 64, 0}, "top_k must be between 1 and 32, got 0"},
      {{256, 64, 1025, 8}, "num_experts must be between 1 and 1024, got 1025"},
      {{256, 64, 0, 1}, "num_experts must be between 1 and 1024, got 0"},
  };
  for (const auto& [shape, reason] : cases) {
    const Status status = refusal(shape);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  }
}

/// As TAG, but an expert is known by a column and a value, so that a narrow hidden size tells a thousand experts apart:
/// expert e writes (1 + e / 128) in column e mod 128, and nothing else.
TestWeights column_and_value_weights(const MoeShape& shape) {
  TestWeights weights = zero_weights(shape);
  const uint8_t one = core::e4m3_encode(1.0f);
  for (uint64_t e = 0; e < shape.num_experts; ++e) {
    uint8_t* w13 = weights.w13.data() + e * weights.w13_elements_per_expert();
    for (uint64_t row = 0; row < shape.intermediate; ++row) {
      w13[row * shape.hidden] = one;
      w13[(shape.intermediate + row) * shape.hidden + 1] = one;
    }
    weights.w2[e * weights.w2_elements_per_expert() + e % 128 * shape.intermediate] =
        core::e4m3_encode(1.0f + static_cast<float>(e / 128));
  }
  return weights;
}

void expect_columns_and_values(const MoeShape& shape, const std::vector<TestTokens>& tokens,
                               const std::vector<RankOutput>& outputs) {
  expect_all_ok(outputs);
  const double silu_of_one = 1.0 / (1.0 + std::exp(-1.0));
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    for (uint64_t token = 0; token < tokens[rank].num_tokens; ++token) {
      std::vector<double> expected(shape.hidden, 0.0);
      for (uint32_t slot = 0; slot < shape.top_k; ++slot) {
        const auto expert = static_cast<uint64_t>(tokens[rank].topk_ids[token * shape.top_k + slot]);
        const double a = double{core::e4m3_decode(static_cast<uint8_t>(tokens[rank].tags[token]))} / 448.0;
        expected[expert % 128] += silu_of_one * a * (1.0 + static_cast<double>(expert / 128)) / shape.top_k;
      }
      for (uint32_t column = 0; column < shape.hidden; ++column)
        ASSERT_NEAR(core::bf16_decode(outputs[rank].rows[token * shape.hidden + column]), expected[column],
                    expected[column] == 0 ? 0 : 2 * bf16_ulp(expected[column]))
            << "rank " << rank << " token " << token << " column " << column;
    }
  }
}

TEST_P(RoutingLimits, HundredsOfExpertsAreEachFoundOnce) {
  for (const uint32_t experts : {384u, 512u, 896u, 1024u}) {
    const MoeShape shape{128, 64, experts, 1};
    const TestWeights weights = column_and_value_weights(shape);
    for (const uint32_t ranks : {1u, 2u}) {
      SCOPED_TRACE(std::to_string(experts) + " experts on " + std::to_string(ranks) + " ranks");
      LayerGroup group(config(shape, experts), ranks, weights);
      expect_all_ok(group.created());
      TestTokens all = tag_tokens(shape, experts);
      for (uint32_t token = 0; token < experts; ++token) all.topk_ids[token] = token;
      const std::vector<TestTokens> tokens = split_tokens(shape, all, ranks);
      expect_columns_and_values(shape, tokens, group.forward(tokens));
      for (uint32_t rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(group.layer(rank).last_report().rows_per_expert, std::vector<uint32_t>(experts / ranks, 1));
    }
  }
}

TEST_P(RoutingLimits, FewTokensWithManySlotsAmongManyExpertsOnEightRanks) {
  const MoeShape shape{128, 64, 896, 16};
  const TestWeights weights = column_and_value_weights(shape);
  LayerGroup group(config(shape, 2), 8, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = spread_tokens(shape, 16, 8);
  expect_columns_and_values(shape, tokens, group.forward(tokens));
}

}  // namespace
}  // namespace megamoe::test
