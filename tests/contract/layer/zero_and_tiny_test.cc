// All-zero groups, signed zeros and numbers below every useful scale: zeros come out, never NaN, and neighbours do not
// notice.
#include <cmath>

#include "core/formats/bf16.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class ZeroAndTiny : public BackendTest {
 protected:
  static constexpr MoeShape kShape{512, 256, 4, 2};
  enum Row : uint64_t { kZero, kOneGroup, kTiny, kSubnormal, kHealthy, kNegativeZero, kNumRows };

  /// Expert 1 has a first GEMM of zeros, so that its second quantisation sees zeros too.
  static TestWeights weights_with_a_zero_expert() {
    TestWeights weights = gen_weights(kShape, 13);
    const uint64_t elements = weights.w13_elements_per_expert();
    std::fill_n(weights.w13.begin() + static_cast<int64_t>(elements), elements, uint8_t{0});
    return weights;
  }

  static TestTokens odd_rows(int64_t first_expert) {
    TestTokens tokens = gen_tokens(kShape, kNumRows, 6);
    const auto fill = [&](uint64_t row, auto value) {
      for (uint32_t h = 0; h < kShape.hidden; ++h) {
        uint16_t& element = tokens.hidden[row * kShape.hidden + h];
        element = value(h, element);
      }
    };
    const auto alternate = [](float value) {
      return [=](uint32_t h, uint16_t) { return core::bf16_encode(h % 2 == 0 ? value : -value); };
    };
    fill(kZero, [](uint32_t, uint16_t) { return uint16_t{0}; });
    fill(kOneGroup, [](uint32_t h, uint16_t old) { return h < 384 ? uint16_t{0} : old; });
    fill(kTiny, alternate(6.3e-38f));
    fill(kSubnormal, alternate(1e-40f));
    fill(kNegativeZero, [](uint32_t, uint16_t) { return uint16_t{0x8000}; });
    for (uint64_t row = 0; row < kNumRows; ++row) {
      tokens.topk_ids[row * 2] = first_expert;
      tokens.topk_ids[row * 2 + 1] = first_expert + 1;
    }
    return tokens;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ZeroAndTiny, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(ZeroAndTiny, RowsGiveZerosAndLeaveOthersAlone) {
  const TestWeights weights = weights_with_a_zero_expert();
  for (const uint32_t ranks : {1u, 2u}) {
    for (const int64_t first_expert : {0, 2}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, experts from " + std::to_string(first_expert));
      LayerGroup group(config(kShape, 8), ranks, weights);
      expect_all_ok(group.created());
      const std::vector<TestTokens> tokens(ranks, odd_rows(first_expert));
      const std::vector<RankOutput> outputs = group.forward(tokens);
      expect_matches_oracle(weights, std::nullopt, tokens, outputs);

      std::vector<TestTokens> all_healthy = tokens;
      for (TestTokens& part : all_healthy) part.hidden = gen_tokens(kShape, kNumRows, 6).hidden;
      const std::vector<RankOutput> healthy = group.forward(all_healthy);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        for (const Row row : {kZero, kNegativeZero, kTiny, kSubnormal})
          for (const uint16_t bits : row_of(kShape, outputs[rank], row)) ASSERT_EQ(bits & 0x7fff, 0) << "row " << row;
        for (const uint16_t bits : outputs[rank].rows) ASSERT_TRUE(std::isfinite(core::bf16_decode(bits)));
        EXPECT_EQ(row_of(kShape, outputs[rank], kHealthy), row_of(kShape, healthy[rank], kHealthy));
      }
    }
  }
}

TEST_P(ZeroAndTiny, QuantisedTokensMayHaveScaleZero) {
  const TestWeights weights = weights_with_a_zero_expert();
  LayerGroup group(config(kShape, 8), 1, weights);
  expect_all_ok(group.created());
  const TestTokens tokens = gen_tokens(kShape, kNumRows, 6);
  QuantizedTokens quantized = quantize_tokens(kShape, tokens);
  std::fill_n(quantized.codes.begin(), kShape.hidden, uint8_t{0});
  std::fill_n(quantized.scales.begin(), kShape.hidden / 128, 0.0f);  // zero codes and scales
  std::fill_n(quantized.scales.begin() + int64_t{kShape.hidden / 128}, kShape.hidden / 128, 0.0f);  // scales only
  const std::vector<RankOutput> right = group.forward({tokens});
  const std::vector<RankOutput> outputs = group.forward({tokens}, [&](uint32_t, ForwardArgs& args) {
    const int64_t h = kShape.hidden, t = kNumRows;
    args.hidden_states = TensorView::dense(quantized.codes.data(), DType::kFloat8E4M3, {t, h});
    args.hidden_states_scale = TensorView::dense(quantized.scales.data(), DType::kFloat32, {t, h / 128});
    args.scale_format = ScaleFormat::kFloat32;
  });
  expect_all_ok(outputs);
  for (const uint64_t row : {0u, 1u})
    for (const uint16_t bits : row_of(kShape, outputs[0], row)) ASSERT_EQ(bits & 0x7fff, 0);
  for (uint64_t row = 2; row < kNumRows; ++row)
    EXPECT_EQ(row_of(kShape, outputs[0], row), row_of(kShape, right[0], row));
}

}  // namespace
}  // namespace megamoe::test
