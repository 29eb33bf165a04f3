// Pruned experts with tiny or zero block scales: they add about nothing, spoil nobody, and are not touched.
#include <cmath>

#include "core/formats/bf16.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class DeadExperts : public BackendTest {
 protected:
  static constexpr MoeShape kShape{256, 256, 8, 2};

  static void set_scales(TestWeights& weights, uint64_t expert, const std::function<float(uint64_t, float)>& scale) {
    const auto change = [&](std::vector<float>& scales, uint64_t per_expert) {
      for (uint64_t i = 0; i < per_expert; ++i) {
        float& old = scales[expert * per_expert + i];
        old = scale(i, old);
      }
    };
    change(weights.w13_scale, weights.w13_scales_per_expert());
    change(weights.w2_scale, weights.w2_scales_per_expert());
  }

  /// 2: all scales 1e-23; 5: every second block zero; 6: one block of 448s at 1e-13 among normal ones; 7: all 1e-38.
  static TestWeights weights_with_dead_experts() {
    TestWeights weights = gen_weights(kShape, 19);
    set_scales(weights, 2, [](uint64_t, float) { return 1e-23f; });
    set_scales(weights, 5, [](uint64_t i, float old) { return i % 2 == 0 ? old : 0.0f; });
    set_scales(weights, 6, [](uint64_t i, float old) { return i == 1 ? 1e-13f : old; });
    set_scales(weights, 7, [](uint64_t, float) { return 1e-38f; });
    for (uint64_t row = 0; row < 128; ++row)  // block (0, 1) of the gate
      for (uint64_t column = 128; column < 256; ++column)
        weights.w13[6 * weights.w13_elements_per_expert() + row * kShape.hidden + column] = 0x7e;
    return weights;
  }

  static TestTokens every_pair_of_experts() {
    TestTokens tokens = gen_tokens(kShape, 64, 23);
    for (size_t token = 0; token < 64; ++token) {
      tokens.topk_ids[token * 2] = static_cast<int64_t>(token / 8);
      tokens.topk_ids[token * 2 + 1] = static_cast<int64_t>(token % 8);
    }
    return tokens;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DeadExperts, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(DeadExperts, AddNothingAndSpoilNobody) {
  const TestWeights dead = weights_with_dead_experts();
  const TestWeights before = dead;
  const TestTokens tokens = every_pair_of_experts();
  LayerGroup group(config(kShape, 64), 1, dead);
  expect_all_ok(group.created());
  const std::vector<RankOutput> outputs = group.forward({tokens});
  expect_matches_oracle(dead, std::nullopt, {tokens}, outputs);
  for (const uint16_t bits : outputs[0].rows) ASSERT_TRUE(std::isfinite(core::bf16_decode(bits)));
  EXPECT_TRUE(dead.w13 == before.w13 && dead.w2 == before.w2 && dead.w13_scale == before.w13_scale &&
              dead.w2_scale == before.w2_scale)
      << "the caller's weights were changed";

  const TestWeights normal = gen_weights(kShape, 19);
  LayerGroup healthy(config(kShape, 64), 1, normal);
  expect_all_ok(healthy.created());
  const std::vector<RankOutput> right = healthy.forward({tokens});
  const auto is_dead = [](int64_t id) { return id == 2 || id == 5 || id == 6 || id == 7; };
  for (uint64_t token = 0; token < 64; ++token) {
    const int64_t a = tokens.topk_ids[token * 2], b = tokens.topk_ids[token * 2 + 1];
    if (!is_dead(a) && !is_dead(b)) {
      EXPECT_EQ(row_of(kShape, outputs[0], token), row_of(kShape, right[0], token)) << "experts " << a << ", " << b;
    }
    if ((a == 2 || a == 7) && (b == 2 || b == 7)) {
      for (const uint16_t bits : row_of(kShape, outputs[0], token))
        ASSERT_LE(std::fabs(core::bf16_decode(bits)), 1e-30f) << "experts " << a << ", " << b;
    }
  }
}

}  // namespace
}  // namespace megamoe::test
