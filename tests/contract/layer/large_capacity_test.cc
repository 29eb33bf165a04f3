// The capacity never changes the answer, also where regions pass 4 GiB and offsets pass 32 bits.
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class LargeCapacity : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, LargeCapacity, ::testing::ValuesIn(backend_names()), backend_label);

// The intermediate is small, so that the test is light; what passes 32 bits depends on hidden and capacity alone.
constexpr MoeShape kShape{7168, 64, 8, 2};

TEST_P(LargeCapacity, GivesTheSameBits) {
  const TestWeights weights = gen_weights(kShape, 3);
  const std::vector<TestTokens> tokens = {gen_tokens(kShape, 8, 1), gen_tokens(kShape, 8, 2)};
  LayerGroup small(config(kShape, 32), 2, weights);
  expect_all_ok(small.created());
  const std::vector<RankOutput> right = small.forward(tokens);
  expect_matches_oracle(weights, std::nullopt, tokens, right);

  LayerGroup large(config(kShape, 200'000), 2, weights);
  expect_all_ok(large.created());
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(large.layer(0).plan().workspace_bytes, uint64_t{1} << 32);
  expect_same_bits(right, large.forward(tokens));
  expect_same_bits(right, large.forward(tokens));
}

TEST_P(LargeCapacity, ThatNoMemoryHoldsIsRefusedWithTheBytesNeeded) {
  const MoeShape wide{1u << 16, 64, 1, 1};
  LayerConfig layer_config = config(wide, 1'000'000'000);
  layer_config.block_rows = block_rows().back();
  const Result<LayerPlan> plan = MoeLayer::plan(layer_config, 1);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Status status = MoeLayer::create(layer_config, members(1)[0]).status();
  EXPECT_EQ(status.code(), Code::kOutOfMemory) << status.message();
  EXPECT_NE(status.message().find("bytes"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(std::to_string(plan.value().workspace_bytes / 10'000'000'000)), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace megamoe::test
