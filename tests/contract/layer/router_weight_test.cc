// The router weight multiplies once, after the activation; nothing else scales the routed part.
#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class RouterWeight : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, RouterWeight, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(RouterWeight, MultipliesAfterTheActivation) {
  // gate 2, up -3, weight 0.5: 0.5 * silu(2) * -3. With the weight on the input it would be silu(1) * -1.5 = -1.09659.
  const MoeShape shape{128, 64, 1, 1};
  TestWeights weights = zero_weights(shape);
  for (uint64_t row = 0; row < shape.intermediate; ++row) {
    weights.w13[row * shape.hidden] = core::e4m3_encode(2.0f);
    weights.w13[(shape.intermediate + row) * shape.hidden] = core::e4m3_encode(-3.0f);
  }
  for (uint64_t row = 0; row < shape.hidden; ++row) weights.w2[row * shape.intermediate] = core::e4m3_encode(1.0f);
  TestTokens tokens = tag_tokens(shape, 1);
  tokens.topk_ids = {0};
  tokens.topk_weights = {0.5f};
  LayerGroup group(config(shape, 1), 1, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> outputs = group.forward({tokens});
  expect_all_ok(outputs);
  for (const uint16_t bits : outputs[0].rows) ASSERT_NEAR(core::bf16_decode(bits), -2.64239, 2 * bf16_ulp(2.64239));
}

TEST_P(RouterWeight, IsLinearAndAppliedOnce) {
  const MoeShape shape{256, 256, 8, 2};
  const TestWeights weights = tag_weights(shape);
  LayerGroup group(config(shape, 16), 2, weights);
  expect_all_ok(group.created());
  for (const float factor : {1.0f, 1.5f, 2.5f, -1.0f, 0.0f}) {
    std::vector<TestTokens> tokens = {tag_tokens(shape, 9), tag_tokens(shape, 7, 30)};
    for (TestTokens& part : tokens) {
      for (size_t i = 0; i < part.topk_ids.size(); ++i) {
        part.topk_ids[i] = static_cast<int64_t>((3 * i + i / 4) % 8);
        part.topk_weights[i] = factor * (i % 2 == 0 ? 0.75f : 0.25f);
      }
    }
    const std::vector<RankOutput> outputs = group.forward(tokens);
    if (factor != 0.0f) {
      expect_tag(shape, tokens, outputs);
      continue;
    }
    expect_all_ok(outputs);
    for (const RankOutput& output : outputs)
      for (const uint16_t bits : output.rows) ASSERT_EQ(bits & 0x7fff, 0);
  }
}

}  // namespace
}  // namespace megamoe::test
