// SwiGLU with clamp: the documented pairs, which side is clamped, and how non-finite values pass.
#include "core/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace megamoe::core {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float apply(float gate, float up, float clamp, float topk_weight = 1.0f) {
  return swiglu(gate, up, clamp, topk_weight, StdExp{});
}

struct Pair {
  float gate, up;
  double clamped, unclamped;
};
constexpr Pair kPairs[] = {
    {30.0f, 30.0f, 99.9955, 900.0},
    {-30.0f, -30.0f, 2.81e-11, 8.42e-11},
    {10.1f, -10.1f, -99.9955, -102.0058},
    {9.9f, 2.0f, 19.7990, 19.7990},
    {0.0f, 30.0f, 0.0, 0.0},
};

TEST(Activation, DocumentedPairsWithLimitTen) {
  for (const Pair& pair : kPairs) {
    EXPECT_NEAR(apply(pair.gate, pair.up, 10.0f), pair.clamped, std::fabs(pair.clamped) * 2e-3 + 1e-15)
        << pair.gate << ", " << pair.up;
  }
  EXPECT_NEAR(apply(30.0f, 30.0f, 10.0f), 99.9955, 1e-4);
  EXPECT_NEAR(apply(10.1f, -10.1f, 10.0f), -99.9955, 1e-4);
  EXPECT_NEAR(apply(9.9f, 2.0f, 10.0f), 19.7990, 1e-4);
}

TEST(Activation, AnInfiniteLimitClampsNothing) {
  for (const Pair& pair : kPairs) {
    EXPECT_NEAR(apply(pair.gate, pair.up, kNoClamp), pair.unclamped, std::fabs(pair.unclamped) * 2e-3 + 1e-15)
        << pair.gate << ", " << pair.up;
  }
}

TEST(Activation, TheGateIsClampedOnlyFromAbove) {
  EXPECT_EQ(clamp_gate(-100.0f, 10.0f), -100.0f);
  EXPECT_EQ(clamp_gate(100.0f, 10.0f), 10.0f);
  EXPECT_EQ(clamp_up(-100.0f, 10.0f), -10.0f);
  EXPECT_EQ(clamp_up(100.0f, 10.0f), 10.0f);
  EXPECT_EQ(clamp_up(-10.0f, 10.0f), -10.0f);
}

TEST(Activation, TheWeightMultipliesAfterTheActivation) {
  // silu(2) * -3 * 0.5, not silu(2 * 0.5) * ...
  EXPECT_NEAR(apply(2.0f, -3.0f, kNoClamp, 0.5f), -2.64239, 1e-5);
  EXPECT_EQ(apply(2.0f, -3.0f, kNoClamp, 0.0f), 0.0f);
}

TEST(Activation, LargeNegativeGatesGiveZeroInsteadOfNan) {
  for (const float gate : {-88.0f, -100.0f, -1e30f}) {
    EXPECT_LE(std::fabs(apply(gate, 1.0f, kNoClamp)), 1e-36f) << gate;
  }
}

TEST(Activation, NanPassesTheClamp) {
  EXPECT_TRUE(std::isnan(clamp_gate(kNan, 10.0f)));
  EXPECT_TRUE(std::isnan(clamp_up(kNan, 10.0f)));
  EXPECT_TRUE(std::isnan(apply(kNan, 1.0f, 10.0f)));
  EXPECT_TRUE(std::isnan(apply(1.0f, kNan, 10.0f)));
}

TEST(Activation, OnlyPositiveLimitsAreValid) {
  EXPECT_TRUE(is_valid_clamp(10.0f));
  EXPECT_TRUE(is_valid_clamp(kNoClamp));
  for (const float clamp : {0.0f, -0.0f, -1.0f, kNan, -kNoClamp}) EXPECT_FALSE(is_valid_clamp(clamp)) << clamp;
}

}  // namespace
}  // namespace megamoe::core
