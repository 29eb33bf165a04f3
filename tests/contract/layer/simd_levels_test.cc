// The CPU backend on lesser processors: every SIMD level this machine has, forced, and one core only.
#include <sched.h>

#include <cmath>

#include "backends/cpu/kernels/kernels.h"
#include "core/formats/bf16.h"
#include "support/layer_group.h"
#include "support/simd_level.h"

#include <gtest/gtest.h>

namespace megamoe::test {
namespace {

class SimdLevels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!is_usable(GetParam())) GTEST_SKIP() << "this processor has no " << GetParam();
    ASSERT_TRUE(level_.set(GetParam()).ok());
    ASSERT_EQ(cpu::simd_level(), GetParam());
  }

 private:
  ScopedSimdLevel level_;
};
INSTANTIATE_TEST_SUITE_P(Levels, SimdLevels, ::testing::Values("scalar", "sse4", "avx2", "avx512"), parameter_label);

TEST_P(SimdLevels, RandomTokensMatchTheOracleAndTheLevelIsReported) {
  const MoeShape shape{512, 256, 8, 2};
  const TestWeights weights = gen_weights(shape, 11);
  const std::vector<TestTokens> tokens = {gen_tokens(shape, 17, 1), gen_tokens(shape, 5, 2)};
  LayerGroup group(small_config(shape, 32), 2, weights);
  expect_all_ok(group.created());
  expect_matches_oracle(weights, std::nullopt, tokens, group.forward(tokens));
  EXPECT_NE(group.layer(0).plan().kernel.find("SIMD level " + GetParam()), std::string::npos)
      << group.layer(0).plan().kernel;
}

TEST_P(SimdLevels, MaskedSlotsAndUnevenCountsAreExact) {
  const MoeShape shape{512, 256, 16, 1};
  const std::vector<uint32_t> counts = {400, 142, 0, 0, 0, 0, 0, 57, 50, 0, 3, 1, 123, 0, 0, 22};
  std::vector<int64_t> ids = {-1, -1, -1};
  for (size_t expert = 0; expert < counts.size(); ++expert) ids.insert(ids.end(), counts[expert], int64_t(expert));
  const TestWeights weights = tag_weights(shape);
  TestTokens tokens = tag_tokens(shape, ids.size());
  tokens.topk_ids = ids;
  for (size_t i = 0; i < 3; ++i) tokens.topk_weights[i] = std::nanf("");
  LayerGroup group(small_config(shape, 1024), 1, weights);
  expect_all_ok(group.created());
  expect_tag(shape, {tokens}, group.forward({tokens}));
  EXPECT_EQ(group.layer(0).last_report().rows_per_expert, counts);
}

TEST_P(SimdLevels, ZeroTinyAndClampedValuesMatchTheOracle) {
  const MoeShape shape{256, 192, 4, 2};
  const TestWeights weights = gen_weights(shape, 12);
  TestTokens tokens = gen_tokens(shape, 12, 3);
  const float fills[] = {0.0f, -0.0f, 6.3e-38f, 1e-40f, 1e30f};
  for (size_t row = 0; row < std::size(fills); ++row)
    for (uint32_t h = 0; h < shape.hidden; ++h)
      tokens.hidden[row * shape.hidden + h] = core::bf16_encode(h % 2 == 0 ? fills[row] : -fills[row]);
  LayerConfig clamped = small_config(shape, 16);
  clamped.swiglu_clamp = 0.5f;
  LayerGroup group(clamped, 1, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> outputs = group.forward({tokens});
  expect_matches_oracle(weights, 0.5f, {tokens}, outputs);
  for (uint64_t row = 0; row < 4; ++row)
    for (const uint16_t bits : row_of(shape, outputs[0], row)) ASSERT_EQ(bits & 0x7fff, 0) << "row " << row;
}

TEST(SimdLevel, ThatTheProcessorLacksOrThatDoesNotExistIsRefused) {
  EXPECT_EQ(cpu::set_simd_level("mmx").code(), Code::kInvalidArgument);
  for (const char* level : {"sse4", "avx2", "avx512"}) {
    if (is_usable(level)) continue;
    EXPECT_EQ(cpu::set_simd_level(level).code(), Code::kNotSupported);
  }
  EXPECT_TRUE(is_usable(cpu::simd_level())) << "a refused level must leave the old one";
}

TEST(OneCore, EightRanksWithTwoWorkersEachStillProgress) {
  const MoeShape shape{128, 64, 16, 4};
  const TestWeights weights = gen_weights(shape, 11);
  const TestTokens all = gen_tokens(shape, 50, 2);
  LayerGroup reference_group(small_config(shape, 64), 1, weights);
  const std::vector<RankOutput> right = reference_group.forward({all});
  expect_matches_oracle(weights, std::nullopt, {all}, right);

  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // inherited by every thread made from here on
  {
    LayerConfig crowded = small_config(shape, 64);
    crowded.num_threads = 2;
    LayerGroup group(crowded, 8, weights);
    expect_all_ok(group.created());
    for (int call = 0; call < 5; ++call) expect_same_bits(right, group.forward(split_tokens(shape, all, 8)));
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace megamoe::test
