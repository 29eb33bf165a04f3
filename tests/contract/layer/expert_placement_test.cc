// Experts divisible by ranks work to the last expert; anything else is refused with the rank counts that would work.
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class ExpertPlacement : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, ExpertPlacement, ::testing::ValuesIn(backend_names()), backend_label);

/// One token per expert, spread over the ranks.
void expect_every_expert_is_found(const LayerConfig& layer_config, uint32_t num_ranks) {
  const MoeShape& shape = layer_config.shape;
  const TestWeights weights = tag_weights(shape);
  LayerGroup group(layer_config, num_ranks, weights);
  expect_all_ok(group.created());
  TestTokens all = tag_tokens(shape, shape.num_experts);
  for (uint32_t expert = 0; expert < shape.num_experts; ++expert) all.topk_ids[expert] = expert;
  const std::vector<TestTokens> tokens = split_tokens(shape, all, num_ranks);
  expect_tag(shape, tokens, group.forward(tokens));
}

TEST_P(ExpertPlacement, OneExpertPerRankAndOneInAllWork) {
  expect_every_expert_is_found(config({256, 64, 8, 1}, 8), 8);
  expect_every_expert_is_found(config({256, 64, 1, 1}, 8), 1);
  expect_every_expert_is_found(config({256, 64, 24, 1}, 8), 3);
}

TEST_P(ExpertPlacement, OfExpertsThatDoNotDivideIsRefusedAndTheProcessGoesOn) {
  struct Refused {
    uint32_t experts, ranks;
    const char* usable;
  };
  for (const Refused& refused :
       {Refused{256, 3, "usable rank counts: 1, 2, 4, 8, 16, 32, 64"},
        Refused{10, 4, "usable rank counts: 1, 2, 5, 10"}, Refused{7, 2, "usable rank counts: 1, 7"},
        Refused{4, 8, "usable rank counts: 1, 2, 4"}}) {
    const LayerConfig layer_config = config({256, 64, refused.experts, 1}, 8);
    const auto refused_group = members(refused.ranks);
    const std::vector<Status> statuses = on_each_rank(refused.ranks, [&](uint32_t rank) {
      const Status status = MoeLayer::create(layer_config, refused_group[rank]).status();
      EXPECT_EQ(refused_group[rank]->allocated_bytes(), 0u);
      return status;
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find(std::to_string(refused.experts) + " experts on " + std::to_string(refused.ranks) +
                                      " ranks; " + refused.usable),
                std::string::npos)
          << status.message();
    }
  }
  expect_every_expert_is_found(config({256, 64, 8, 1}, 8), 8);
}

TEST_P(ExpertPlacement, AGroupWhoseCreationWasRefusedCanCreateAnotherLayer) {
  const TestWeights weights = tag_weights({256, 64, 8, 1});
  const auto reused = members(2);
  const std::vector<Status> statuses = on_each_rank(2, [&](uint32_t rank) {
    return MoeLayer::create(config({256, 64, 7, 1}, 8), reused[rank]).status();
  });
  for (const Status& status : statuses) EXPECT_EQ(status.code(), Code::kInvalidArgument);
  LayerGroup group(config(weights.shape, 8), reused, weights);
  expect_all_ok(group.created());
}

}  // namespace
}  // namespace megamoe::test
