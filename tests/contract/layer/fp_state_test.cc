// The caller's flush-to-zero, denormals-are-zero and rounding mode change no bit, and come back as they were.
#include <gtest/gtest.h>

#include <cfenv>

#include "core/formats/bf16.h"
#include "support/layer_group.h"
#include "support/simd_level.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace megamoe::test {
namespace {

constexpr MoeShape kShape{256, 192, 8, 2};

/// Ordinary, tiny and subnormal rows: the last two would change under flush-to-zero if it reached the arithmetic.
std::vector<TestTokens> sensitive_tokens() {
  std::vector<TestTokens> tokens = {gen_tokens(kShape, 9, 1), gen_tokens(kShape, 4, 2)};
  for (TestTokens& part : tokens) {
    for (uint32_t h = 0; h < kShape.hidden; ++h) {
      part.hidden[h] = core::bf16_encode(static_cast<float>(gen_value(3, h)) * 1e-11f);
      part.hidden[kShape.hidden + h] = core::bf16_encode(static_cast<float>(gen_value(4, h)) * 1e-38f);
      part.hidden[2 * kShape.hidden + h] = core::bf16_encode(static_cast<float>(gen_value(5, h)) * 1e36f);
    }
    part.topk_weights[3 * kShape.top_k] = 1e-39f;
  }
  return tokens;
}

/// Weights of which one expert's scales are subnormal numbers.
TestWeights sensitive_weights() {
  TestWeights weights = gen_weights(kShape, 8);
  for (uint64_t i = 0; i < weights.w2_scales_per_expert(); ++i) weights.w2_scale[i] = 1e-39f;
  return weights;
}

class FpState : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!is_usable(GetParam())) GTEST_SKIP() << "this processor has no " << GetParam();
    ASSERT_TRUE(level_.set(GetParam()).ok());
  }

  /// Runs a call on rank threads that are in a state of their own, which must be there again afterwards.
  template <class Set, class Get>
  void expect_no_influence(Set set, Get get) {
    const TestWeights weights = sensitive_weights();
    const std::vector<TestTokens> tokens = sensitive_tokens();
    LayerGroup group(small_config(kShape, 16), 2, weights);
    expect_all_ok(group.created());
    const std::vector<RankOutput> right = group.forward(tokens);
    expect_matches_oracle(weights, std::nullopt, tokens, right);

    // Also a layer whose threads were started in that state.
    auto members = make_thread_group(2);
    std::vector<RankOutput> before(2), after(2);
    expect_all_ok(on_each_rank(2, [&](uint32_t rank) -> Status {
      set();
      const auto state = get();
      auto layer = MoeLayer::create(small_config(kShape, 16), members.value()[rank]);
      if (!layer.ok()) return layer.status();
      MEGAMOE_RETURN_IF_ERROR(layer->load_weights(rank_weights(weights, rank, 2)));
      for (MoeLayer* each : {&layer.value(), &group.layer(rank)}) {
        RankOutput& output = each == &layer.value() ? before[rank] : after[rank];
        output.status = each->forward(group.args(rank, tokens[rank], output.rows));
        EXPECT_EQ(get(), state) << "the caller's state was not given back";
      }
      return before[rank].status;
    }));
    expect_same_bits(right, before);
    expect_same_bits(right, after);
  }

 private:
  ScopedSimdLevel level_;
};
INSTANTIATE_TEST_SUITE_P(Levels, FpState, ::testing::Values("scalar", "sse4", "avx2", "avx512"), parameter_label);

TEST_P(FpState, OfTheCallersRoundingChangesNothing) {
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO})
    expect_no_influence([=] { std::fesetround(mode); }, [] { return std::fegetround(); });
}

#if defined(__x86_64__)
TEST_P(FpState, OfTheCallersFlushToZeroChangesNothing) {
  constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6, kSticky = 0x3f;
  for (const unsigned bits : {kFlushToZero, kDenormalsAreZero, kFlushToZero | kDenormalsAreZero})
    expect_no_influence([=] { _mm_setcsr(_mm_getcsr() | bits); }, [] { return _mm_getcsr() & ~kSticky; });
}
#endif

}  // namespace
}  // namespace megamoe::test
