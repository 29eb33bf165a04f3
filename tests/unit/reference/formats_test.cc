// The oracle's own tables and nearest-code search against what ml_dtypes says.
#include "core/reference/formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "unit/reference/expected_formats.h"

namespace megamoe::reference {
namespace {

float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(ReferenceFormats, E4m3TableIsThatOfMlDtypes) {
  const auto expected = test::expected_formats("e4m3_decode");
  ASSERT_EQ(expected.size(), 256u);
  for (const auto& [code, bits] : expected) {
    const double value = e4m3_values()[code];
    if (std::isnan(as_float(bits))) {
      EXPECT_TRUE(std::isnan(value)) << "code " << code;
    } else {
      EXPECT_EQ(value, as_float(bits)) << "code " << code;
      EXPECT_EQ(std::signbit(value), std::signbit(as_float(bits))) << "code " << code;
    }
  }
}

TEST(ReferenceFormats, E4m3NearestIsThatOfMlDtypes) {
  const auto expected = test::expected_formats("e4m3_encode");
  ASSERT_GT(expected.size(), 1000u);
  for (const auto& [bits, code] : expected) EXPECT_EQ(e4m3_nearest(as_float(bits)), code) << as_float(bits);
}

TEST(ReferenceFormats, Bf16NearestIsThatOfMlDtypes) {
  const auto expected = test::expected_formats("bf16_encode");
  ASSERT_GT(expected.size(), 1000u);
  for (const auto& [bits, code] : expected) EXPECT_EQ(bf16_nearest(as_float(bits)), code) << as_float(bits);
}

TEST(ReferenceFormats, Bf16RoundTripsAllPatternsAndRoundsFp64Once) {
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const double value = bf16_value(bits);
    ASSERT_EQ(bf16_nearest(value), std::isnan(value) ? 0x7fc0 : bits) << std::hex << pattern;
  }
  // Just above a tie in FP64, but on the tie in FP32: rounding twice would go down to the even number.
  EXPECT_EQ(bf16_nearest(1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40)), 0x3f81);
  EXPECT_EQ(bf16_nearest(std::numeric_limits<double>::max()), 0x7f80);
  EXPECT_EQ(bf16_nearest(-std::numeric_limits<double>::denorm_min()), 0x8000);
}

}  // namespace
}  // namespace megamoe::reference
