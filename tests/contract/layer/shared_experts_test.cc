// Shared experts: every token visits them, on its own rank, once, whatever the number of ranks; routed weights are
// scaled, those of shared experts are not.
#include <limits>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class SharedExperts : public BackendTest {
 protected:
  static LayerConfig config_of(const TestWeights& weights, uint32_t max_tokens) {
    LayerConfig layer_config = config(weights.shape, max_tokens);
    layer_config.num_shared_experts = weights.shared->shape.num_experts;
    layer_config.routed_scaling = weights.routed_scaling;
    return layer_config;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, SharedExperts, ::testing::ValuesIn(backend_names()), backend_label);

TestWeights with_shared(const MoeShape& shape, uint32_t num_shared, float routed_scaling) {
  TestWeights weights = gen_weights(shape, 31);
  weights.shared = std::make_shared<TestWeights>(gen_weights({shape.hidden, shape.intermediate, num_shared, 1}, 77));
  weights.routed_scaling = routed_scaling;
  return weights;
}

/// Some slots masked, some tokens fully; weights of shared experts where `num_shared` is not 0.
TestTokens make_tokens(const MoeShape& shape, uint64_t num_tokens, uint32_t num_shared) {
  TestTokens tokens = gen_tokens(shape, num_tokens, 5);
  for (uint64_t token = 0; token < num_tokens; ++token)
    for (uint32_t slot = 0; slot < shape.top_k; ++slot)
      if (token % 5 == 2 || (token + slot) % 7 == 3) {
        tokens.topk_ids[token * shape.top_k + slot] = -1;
        tokens.topk_weights[token * shape.top_k + slot] = std::numeric_limits<float>::quiet_NaN();
      }
  for (uint64_t i = 0; i < num_tokens * num_shared; ++i)
    tokens.shared_weights.push_back(static_cast<float>(0.75 + 0.5 * gen_value(9, i)));
  return tokens;
}

TEST_P(SharedExperts, AreRightAndTheSameOnAnyNumberOfRanks) {
  const MoeShape shape{256, 192, 16, 3};
  for (const uint32_t num_shared : {1u, 2u}) {
    for (const bool weighted : {false, true}) {
      SCOPED_TRACE(std::to_string(num_shared) + (weighted ? " with weights" : " without weights"));
      const TestWeights weights = with_shared(shape, num_shared, 2.5f);
      const TestTokens all = make_tokens(shape, 37, weighted ? num_shared : 0);
      std::vector<RankOutput> first;
      for (const uint32_t num_ranks : {1u, 2u, 4u, 8u}) {
        SCOPED_TRACE(std::to_string(num_ranks) + " ranks");
        LayerGroup group(config_of(weights, 37), num_ranks, weights);
        expect_all_ok(group.created());
        const std::vector<TestTokens> tokens = split_tokens(shape, all, num_ranks);
        const std::vector<RankOutput> outputs = group.forward(tokens);
        expect_matches_oracle(weights, std::nullopt, tokens, outputs);
        if (first.empty()) first = outputs;
        expect_same_bits(first, outputs);
        expect_same_bits(first, group.forward(tokens));
      }
    }
  }
}

TEST_P(SharedExperts, AFullyMaskedTokenStillVisitsThem) {
  const MoeShape shape{128, 64, 8, 2};
  const TestWeights weights = with_shared(shape, 1, 1.0f);
  TestTokens tokens = gen_tokens(shape, 6, 3);
  std::fill(tokens.topk_ids.begin(), tokens.topk_ids.end(), -1);
  LayerGroup group(config_of(weights, 6), 2, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> parts = split_tokens(shape, tokens, 2);
  const std::vector<RankOutput> outputs = group.forward(parts);
  expect_matches_oracle(weights, std::nullopt, parts, outputs);
  for (uint64_t token = 0; token < 3; ++token)
    EXPECT_NE(row_of(shape, outputs[0], token), std::vector<uint16_t>(shape.hidden, 0)) << token;
  // They are not among the received rows.
  EXPECT_EQ(group.layer(0).last_report().rows_per_expert, std::vector<uint32_t>(4, 0));
}

TEST_P(SharedExperts, RoutedWeightsAreScaledOnceAndBeforeTheRequantisation) {
  const MoeShape shape{128, 64, 8, 2};
  TestWeights weights = gen_weights(shape, 4);
  const TestTokens tokens = gen_tokens(shape, 9, 8);
  TestTokens scaled = tokens;
  for (float& weight : scaled.topk_weights) weight *= 2.5f;
  LayerGroup plain(config(shape, 16), 1, weights);
  expect_all_ok(plain.created());
  const std::vector<RankOutput> expected = plain.forward({scaled});
  weights.routed_scaling = 2.5f;
  LayerConfig layer_config = config(shape, 16);
  layer_config.routed_scaling = 2.5f;
  LayerGroup scaling(layer_config, 1, weights);
  expect_all_ok(scaling.created());
  expect_same_bits(expected, scaling.forward({tokens}));
}

TEST_P(SharedExperts, ManySlotsAndExpertsUpToTheLimits) {
  const MoeShape shape{128, 64, 1008, 28};
  const TestWeights weights = with_shared(shape, 4, 1.0f);
  LayerGroup group(config_of(weights, 8), 4, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = split_tokens(shape, gen_tokens(shape, 13, 2), 4);
  expect_matches_oracle(weights, std::nullopt, tokens, group.forward(tokens));
}

TEST_P(SharedExperts, WhatCannotBeIsRefusedByName) {
  const auto refusal = [](uint32_t experts, uint32_t top_k, uint32_t num_shared, uint32_t num_ranks, float scaling) {
    LayerConfig layer_config = config({128, 64, experts, top_k}, 8);
    layer_config.num_shared_experts = num_shared;
    layer_config.routed_scaling = scaling;
    return MoeLayer::plan(layer_config, num_ranks).status();
  };
  EXPECT_NE(
      refusal(1008, 8, 3, 8, 1)
          .message()
          .find(
              "num_experts and num_shared_experts of every rank must be at most 1024 together, got 1008 + 3 x 8 ranks "
              "= 1032"),
      std::string::npos);
  EXPECT_NE(
      refusal(64, 31, 2, 1, 1).message().find("top_k and num_shared_experts must be at most 32 together, got 31 + 2"),
      std::string::npos);
  EXPECT_NE(
      refusal(64, 8, 0, 1, std::numeric_limits<float>::infinity()).message().find("routed_scaling must be finite"),
      std::string::npos);
  EXPECT_TRUE(refusal(64, 30, 2, 1, -1.5f).ok());
}

TEST_P(SharedExperts, TensorsMustComeWithThem) {
  const MoeShape shape{128, 64, 8, 2};
  const TestWeights weights = with_shared(shape, 2, 1.0f);
  TestWeights without = weights;
  without.shared = nullptr;
  LayerGroup lacking(config_of(weights, 8), 1, without);
  EXPECT_NE(lacking.created()[0].message().find("shared_w13 must be given, got an empty view"), std::string::npos)
      << lacking.created()[0].message();
  LayerGroup given(config(shape, 8), 1, weights);
  EXPECT_NE(given.created()[0].message().find(
                "shared_w13 must be absent, since the layer was created with num_shared_experts 0"),
            std::string::npos)
      << given.created()[0].message();

  LayerGroup group(config_of(weights, 8), 2, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = split_tokens(shape, make_tokens(shape, 8, 3), 2);  // three weights for two experts
  expect_refused(group.forward({tokens[0], gen_tokens(shape, 4, 1)}), 0, Code::kInvalidArgument,
                 "shared_weights must have shape [4, 2], got [4, 3]");
  tokens = split_tokens(shape, make_tokens(shape, 8, 2), 2);
  expect_matches_oracle(weights, std::nullopt, tokens, group.forward(tokens));
}

TEST_P(SharedExperts, AnIdThatIsNoRoutedExpertIsRefused) {
  const MoeShape shape{128, 64, 8, 2};
  const TestWeights weights = with_shared(shape, 1, 1.0f);
  LayerGroup group(config_of(weights, 8), 2, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = split_tokens(shape, gen_tokens(shape, 8, 2), 2);
  tokens[1].topk_ids[3] = 9;  // an expert of the protocol's numbering, but not the caller's
  expect_refused(group.forward(tokens), 1, Code::kInvalidArgument,
                 "topk_ids must be -1 (masked) or an expert in [0, 8), got 9 at rank 1, token 1, slot 1");
}

}  // namespace
}  // namespace megamoe::test
