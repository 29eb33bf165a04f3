// The four row orders of w13, each with its own scales on gate and up; an order that is not stated is refused.
#include <algorithm>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "support/backend_test.h"
#include "support/placed_calls.h"

namespace megamoe::test {
namespace {

class W13Order : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, W13Order, ::testing::ValuesIn(backend_names()), backend_label);

constexpr W13Layout kLayouts[] = {W13Layout::kGateUp, W13Layout::kUpGate, W13Layout::kInterleaved1,
                                  W13Layout::kInterleaved8};

/// Where row `row` of gate (half 0) or up (half 1) lies in an expert's w13.
uint64_t stored_row(W13Layout layout, uint64_t half, uint64_t row, uint64_t intermediate) {
  switch (layout) {
    case W13Layout::kUpGate:
      return (1 - half) * intermediate + row;
    case W13Layout::kInterleaved1:
      return 2 * row + half;
    case W13Layout::kInterleaved8:
      return row / 8 * 16 + half * 8 + row % 8;
    default:
      return half * intermediate + row;
  }
}

/// The same layer with its w13 rows (and, for up before gate, its scale halves) stored in another order.
TestWeights reordered(const TestWeights& from, W13Layout layout) {
  TestWeights to = from;
  const uint64_t hidden = from.shape.hidden, intermediate = from.shape.intermediate;
  for (uint64_t expert = 0; expert < from.shape.num_experts; ++expert) {
    const uint64_t first = expert * from.w13_elements_per_expert();
    for (uint64_t half = 0; half < 2; ++half)
      for (uint64_t row = 0; row < intermediate; ++row)
        std::copy_n(
            from.w13.begin() + static_cast<int64_t>(first + (half * intermediate + row) * hidden), hidden,
            to.w13.begin() + static_cast<int64_t>(first + stored_row(layout, half, row, intermediate) * hidden));
    if (layout != W13Layout::kUpGate) continue;
    const auto scales = to.w13_scale.begin() + static_cast<int64_t>(expert * from.w13_scales_per_expert());
    std::rotate(scales, scales + static_cast<int64_t>(from.w13_scales_per_expert() / 2),
                scales + static_cast<int64_t>(from.w13_scales_per_expert()));
  }
  return to;
}

Status load_as(PlacedCalls& calls, LayerGroup& group, const TestWeights& weights, W13Layout layout) {
  const std::vector<Status> statuses = on_each_rank(group.num_ranks(), [&](uint32_t rank) {
    ExpertWeights mine = rank_weights(weights, rank, group.num_ranks());
    mine.w13_layout = layout;
    return calls.load_weights(group.layer(rank), mine);
  });
  for (const Status& status : statuses)
    if (!status.ok()) return status;
  return {};
}

TEST_P(W13Order, EachDeclaredOrderGivesTheValueOfGateAndUp) {
  PlacedCalls calls(GetParam());
  // Gate 2 = code 4 x 0.5, up -3 = code -12 x 0.25: silu(2) * -3. Swapped halves would give silu(-3) * 2 = -0.28456.
  const MoeShape shape{256, 256, 2, 1};
  TestWeights weights = zero_weights(shape);
  for (uint64_t expert = 0; expert < 2; ++expert) {
    uint8_t* w13 = weights.w13.data() + expert * weights.w13_elements_per_expert();
    for (uint64_t row = 0; row < shape.intermediate; ++row) {
      w13[row * shape.hidden] = core::e4m3_encode(4.0f);
      w13[(shape.intermediate + row) * shape.hidden] = core::e4m3_encode(-12.0f);
    }
    const auto scales = weights.w13_scale.begin() + static_cast<int64_t>(expert * weights.w13_scales_per_expert());
    std::fill_n(scales, 4, 0.5f);
    std::fill_n(scales + 4, 4, 0.25f);
    for (uint64_t row = 0; row < shape.hidden; ++row)
      weights.w2[expert * weights.w2_elements_per_expert() + row * shape.intermediate] = core::e4m3_encode(1.0f);
  }
  TestTokens tokens = tag_tokens(shape, 2);
  tokens.topk_ids = {0, 1};
  LayerGroup group(config(shape, 2), 1, weights);
  expect_all_ok(group.created());
  const auto expect_value = [&](double expected) {
    const std::vector<RankOutput> outputs = group.forward({tokens});
    expect_all_ok(outputs);
    for (const uint16_t bits : outputs[0].rows) ASSERT_NEAR(core::bf16_decode(bits), expected, 2 * bf16_ulp(expected));
  };
  for (const W13Layout layout : kLayouts) {
    SCOPED_TRACE(static_cast<int>(layout));
    const TestWeights stored = reordered(weights, layout);
    ASSERT_TRUE(load_as(calls, group, stored, layout).ok());
    expect_value(-5.28478);
  }
  // A wrong declaration cannot be seen in the tensors; it must at least be what decides.
  ASSERT_TRUE(load_as(calls, group, weights, W13Layout::kUpGate).ok());
  expect_value(-0.28456);
}

TEST_P(W13Order, RandomWeightsGiveTheSameBitsInEachDeclaredOrder) {
  PlacedCalls calls(GetParam());
  for (const uint32_t intermediate : {256u, 192u, 64u}) {
    const MoeShape shape{256, intermediate, 4, 2};
    const TestWeights weights = gen_weights(shape, 27);
    const std::vector<TestTokens> tokens = {gen_tokens(shape, 9, 1), gen_tokens(shape, 4, 2)};
    LayerGroup group(config(shape, 16), 2, weights);
    expect_all_ok(group.created());
    const std::vector<RankOutput> right = group.forward(tokens);
    expect_matches_oracle(weights, std::nullopt, tokens, right);
    for (const W13Layout layout : kLayouts) {
      SCOPED_TRACE(static_cast<int>(layout));
      const TestWeights stored = reordered(weights, layout);
      ASSERT_TRUE(load_as(calls, group, stored, layout).ok());
      expect_same_bits(right, group.forward(tokens));
    }
  }
}

TEST_P(W13Order, ThatIsNotStatedIsRefused) {
  PlacedCalls calls(GetParam());
  const MoeShape shape{256, 256, 2, 1};
  const TestWeights weights = gen_weights(shape, 1);
  LayerGroup group(config(shape, 2), 1, weights);
  expect_all_ok(group.created());
  const Status status = load_as(calls, group, weights, W13Layout::kUnspecified);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("w13_layout must be stated"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace megamoe::test
