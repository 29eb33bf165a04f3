// The activation quantiser's contract: hand-computed groups, edge values, and bit equality with the oracle's own
// quantiser.
#include "core/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/formats/bf16.h"
#include "core/reference/layer.h"
#include "support/data.h"

namespace megamoe::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Group {
  std::vector<uint8_t> codes;
  float scale = 0.0f;
};

Group quantize(const std::vector<float>& values) {
  Group group;
  group.codes.resize(values.size());
  group.scale = quantize_group(
      static_cast<uint32_t>(values.size()), [&](uint32_t i) { return values[i]; }, group.codes.data());
  return group;
}

TEST(Quantize, ScaleIsTheLargestMagnitudeOver448) {
  EXPECT_EQ(group_scale(448.0f), 1.0f);
  EXPECT_EQ(group_scale(1.0f), 1.0f / 448.0f);
  EXPECT_EQ(group_scale(3.0f), 3.0f / 448.0f);
  EXPECT_EQ(group_inverse(0.5f), 2.0f);
}

TEST(Quantize, SmallGroupByHand) {
  // amax 448: codes are the nearest E4M3 numbers themselves. 17 is the tie of 16 (even) and 18.
  const Group group = quantize({448.0f, -1.0f, 17.0f, 0.001953125f, -0.0f});
  EXPECT_EQ(group.scale, 1.0f);
  EXPECT_EQ(group.codes, (std::vector<uint8_t>{0x7e, 0xb8, 0x58, 0x01, 0x80}));
}

TEST(Quantize, HalvesOfOneGroupShareOneScale) {
  // A scale per 64 columns would give the second half codes of full precision.
  std::vector<float> values(128, 448.0f);
  for (size_t i = 64; i < 128; ++i) values[i] = std::ldexp(448.0f, -16);
  const Group group = quantize(values);
  EXPECT_EQ(group.codes[0], 0x7e);
  // 448 / 65,536 = 3.5 * 2^-9, the tie of the subnormal codes 3 and 4.
  EXPECT_EQ(group.codes[127], 0x04);
}

TEST(Quantize, ZeroGroupsGiveZeroCodesAndAFiniteScale) {
  const Group group = quantize({0.0f, -0.0f, 0.0f});
  EXPECT_EQ(group.codes, (std::vector<uint8_t>{0x00, 0x80, 0x00}));
  EXPECT_EQ(group.scale, 1e-10f / 448.0f);
}

TEST(Quantize, ValuesFarBelowTheFloorVanish) {
  for (const float tiny : {6.3e-38f, 1e-40f, 1e-45f, 1e-16f}) {
    const Group group = quantize({tiny, -tiny});
    EXPECT_EQ(group.codes, (std::vector<uint8_t>{0x00, 0x80})) << tiny;
    EXPECT_TRUE(std::isfinite(group.scale) && group.scale > 0.0f) << tiny;
  }
  EXPECT_EQ(quantize({1e-10f}).codes[0], 0x7e) << "the floor itself still fills the range";
}

TEST(Quantize, TheLargestNumbersStayFinite) {
  const float largest = std::numeric_limits<float>::max();
  const Group group = quantize({largest, -largest, largest / 2});
  EXPECT_EQ(group.codes, (std::vector<uint8_t>{0x7e, 0xfe, 0x76}));
  EXPECT_TRUE(std::isfinite(group.scale));
}

TEST(Quantize, NanIsIgnoredByTheMaximumAndKeepsItsCode) {
  const Group group = quantize({1.0f, kNan, -2.0f});
  EXPECT_EQ(group.scale, 2.0f / 448.0f);
  EXPECT_EQ(group.codes, (std::vector<uint8_t>{0x76, 0x7f, 0xfe}));
  EXPECT_EQ(quantize({kNan, kNan}).scale, 1e-10f / 448.0f);
}

TEST(Quantize, InfinityGivesAnInfiniteScaleZeroNeighboursAndItsOwnNan) {
  const Group group = quantize({1.0f, -kInfinity, -3.0f});
  EXPECT_EQ(group.scale, kInfinity);
  EXPECT_EQ(group.codes, (std::vector<uint8_t>{0x00, 0x7f, 0x80}));
}

// The oracle searches its own table in FP64; codes and scales must agree to the bit.
TEST(Quantize, EqualsTheOracleBitForBit) {
  for (const uint32_t columns : {128u, 64u}) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
      std::vector<double> values(columns);
      std::vector<float> floats(columns);
      const double magnitude = std::ldexp(1.0, static_cast<int>(seed % 80) - 50);
      for (uint32_t i = 0; i < columns; ++i) {
        // Cubes spread the values over several binades.
        const double g = test::gen_value(seed, i);
        floats[i] = static_cast<float>(g * g * g * magnitude);
        if (seed % 2 == 0) floats[i] = bf16_decode(bf16_encode(floats[i]));
        if (seed % 9 == 0 && i % 50 == 7) floats[i] = i % 100 == 7 ? kNan : 0.0f;
        values[i] = floats[i];
      }
      const Group group = quantize(floats);
      const reference::QuantizedRow row = reference::quantize_row(values.data(), columns);
      ASSERT_EQ(row.scales.size(), 1u);
      ASSERT_EQ(group.scale, row.scales[0]) << "seed " << seed;
      ASSERT_EQ(group.codes, row.codes) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace megamoe::core
