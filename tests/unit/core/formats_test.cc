// Every code and pattern of E4M3, E5M2, UE8M0 and BF16, and encoding around every tie, against the oracle and
// ml_dtypes.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "core/formats/e5m2.h"
#include "core/formats/ue8m0.h"
#include "core/reference/formats.h"
#include "unit/reference/expected_formats.h"

namespace megamoe::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

static_assert(e4m3_decode(0x7e) == 448.0f && e4m3_encode(1e30f) == 0x7e, "usable in constant expressions");
static_assert(e5m2_decode(0x7b) == 57344.0f && ue8m0_decode(127) == 1.0f && bf16_decode(0x3f80) == 1.0f);

// The same FP32 number up to the sign of zero; NaN equals NaN.
::testing::AssertionResult same_bits(float actual, uint32_t expected_bits) {
  const auto actual_bits = bit_cast<uint32_t>(actual);
  if (std::isnan(actual) && std::isnan(bit_cast<float>(expected_bits))) return ::testing::AssertionSuccess();
  if (actual_bits == expected_bits) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << std::hex << actual_bits << " instead of " << expected_bits;
}

// All FP32 patterns whose lower 12 bits are one of six that surround ties: 6.3 million inputs over the whole range.
template <class Visit>
void for_each_fp32_sample(Visit&& visit) {
  for (uint32_t upper = 0; upper < (1u << 20); ++upper) {
    for (const uint32_t lower : {0x000u, 0x001u, 0x7ffu, 0x800u, 0x801u, 0xfffu}) visit((upper << 12) | lower);
  }
}

TEST(E4m3, DecodesAll256CodesAsMlDtypes) {
  const auto expected = test::expected_formats("e4m3_decode");
  ASSERT_EQ(expected.size(), 256u);
  for (const auto& [code, bits] : expected) {
    EXPECT_TRUE(same_bits(e4m3_decode(static_cast<uint8_t>(code)), bits)) << "code " << code;
    EXPECT_EQ(e4m3_is_nan(static_cast<uint8_t>(code)), std::isnan(bit_cast<float>(bits))) << "code " << code;
  }
}

TEST(E4m3, EncodesAsMlDtypesAroundEveryTie) {
  const auto expected = test::expected_formats("e4m3_encode");
  ASSERT_GT(expected.size(), 1000u);
  for (const auto& [bits, code] : expected) {
    EXPECT_EQ(e4m3_encode(bit_cast<float>(bits)), code) << "input bits " << std::hex << bits;
  }
}

TEST(E4m3, RoundTripsEveryNumberAndKeepsTheSignOfZero) {
  for (uint32_t code = 0; code < 256; ++code) {
    const uint8_t expected = e4m3_is_nan(static_cast<uint8_t>(code)) ? 0x7f : static_cast<uint8_t>(code);
    EXPECT_EQ(e4m3_encode(e4m3_decode(static_cast<uint8_t>(code))), expected);
  }
}

TEST(E4m3, RoundsTiesToEvenBetweenAllNeighbours) {
  for (uint8_t lower = 0; lower < 0x7e; ++lower) {
    const float low = e4m3_decode(lower);
    const float high = e4m3_decode(lower + 1);
    const float middle = (low + high) / 2;
    const uint8_t even = lower % 2 == 0 ? lower : lower + 1;
    EXPECT_EQ(e4m3_encode(middle), even) << middle;
    EXPECT_EQ(e4m3_encode(std::nextafter(middle, 0.0f)), lower) << middle;
    EXPECT_EQ(e4m3_encode(std::nextafter(middle, kInfinity)), lower + 1) << middle;
    EXPECT_EQ(e4m3_encode(-middle), even | 0x80) << middle;
  }
}

TEST(E4m3, SaturatesInsteadOfOverflowing) {
  for (const float value :
       {448.0f, 449.0f, 464.0f, 479.0f, 480.0f, 1e30f, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(e4m3_encode(value), 0x7e) << value;
    EXPECT_EQ(e4m3_encode(-value), 0xfe) << value;
  }
}

TEST(E4m3, EveryNanBecomesTheOneCode) {
  for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu}) {
    EXPECT_EQ(e4m3_encode(bit_cast<float>(bits)), 0x7f) << std::hex << bits;
  }
}

TEST(E4m3, AgreesWithTheOraclesSearchOverTheWholeRange) {
  uint64_t differing = 0;
  for_each_fp32_sample([&](uint32_t bits) {
    const float value = bit_cast<float>(bits);
    differing += e4m3_encode(value) != reference::e4m3_nearest(value);
  });
  EXPECT_EQ(differing, 0u);
}

TEST(E5m2, DecodesAll256CodesAsMlDtypes) {
  const auto expected = test::expected_formats("e5m2_decode");
  ASSERT_EQ(expected.size(), 256u);
  for (const auto& [code, bits] : expected) {
    EXPECT_TRUE(same_bits(e5m2_decode(static_cast<uint8_t>(code)), bits)) << "code " << code;
    EXPECT_EQ(e5m2_is_nan(static_cast<uint8_t>(code)), std::isnan(bit_cast<float>(bits))) << "code " << code;
  }
}

TEST(E5m2, EncodesAsMlDtypesAroundEveryTie) {
  const auto expected = test::expected_formats("e5m2_encode");
  ASSERT_GT(expected.size(), 1000u);
  for (const auto& [bits, code] : expected) {
    EXPECT_EQ(e5m2_encode(bit_cast<float>(bits)), code) << "input bits " << std::hex << bits;
  }
}

TEST(E5m2, RoundTripsNumbersSaturatesAndRoundsTiesToEven) {
  for (uint8_t lower = 0; lower < kE5m2MaxCode; ++lower) {
    const float low = e5m2_decode(lower);
    const float high = e5m2_decode(lower + 1);
    const float middle = (low + high) / 2;
    EXPECT_EQ(e5m2_encode(low), lower);
    EXPECT_EQ(e5m2_encode(-low), lower | 0x80);
    EXPECT_EQ(e5m2_encode(middle), lower % 2 == 0 ? lower : lower + 1) << middle;
    EXPECT_EQ(e5m2_encode(std::nextafter(middle, 0.0f)), lower) << middle;
    EXPECT_EQ(e5m2_encode(std::nextafter(middle, kInfinity)), lower + 1) << middle;
  }
  EXPECT_EQ(e5m2_encode(57344.0f), 0x7b);
  EXPECT_EQ(e5m2_encode(kInfinity), 0x7b);
  EXPECT_EQ(e5m2_encode(-1e30f), 0xfb);
  EXPECT_EQ(e5m2_encode(kNan), 0x7f);
  EXPECT_EQ(e5m2_encode(-kNan), 0x7f);
}

TEST(Ue8m0, DecodesAll256CodesAsMlDtypesAndEncodesThemBack) {
  const auto expected = test::expected_formats("ue8m0_decode");
  ASSERT_EQ(expected.size(), 256u);
  for (const auto& [code, bits] : expected) {
    const float value = ue8m0_decode(static_cast<uint8_t>(code));
    EXPECT_TRUE(same_bits(value, bits)) << "code " << code;
    EXPECT_EQ(ue8m0_encode_up(value), code);
    EXPECT_EQ(ue8m0_is_exact(value), code != 0xff) << "code " << code;
  }
}

TEST(Ue8m0, EncodesUpwardsSoThatNoBlockOverflows) {
  for (uint32_t code = 0; code < 254; ++code) {
    const float value = ue8m0_decode(static_cast<uint8_t>(code));
    const float above = std::nextafter(value, kInfinity);
    EXPECT_EQ(ue8m0_encode_up(above), code + 1) << value;
    EXPECT_FALSE(ue8m0_is_exact(above)) << value;
    EXPECT_EQ(ue8m0_encode_up(value * 1.5f), code + 1) << value;
  }
  EXPECT_EQ(ue8m0_encode_up(0.0f), 0);
  EXPECT_EQ(ue8m0_encode_up(-0.0f), 0);
  EXPECT_EQ(ue8m0_encode_up(1e-45f), 0);
  EXPECT_EQ(ue8m0_encode_up(std::numeric_limits<float>::max()), 0xfe);
  for (const float value : {kInfinity, kNan, -1.0f, -kInfinity}) EXPECT_EQ(ue8m0_encode_up(value), 0xff) << value;
  for (const float value : {0.0f, -1.0f, 3.0f, 0.7f / 448.0f, kInfinity}) EXPECT_FALSE(ue8m0_is_exact(value)) << value;
}

TEST(Bf16, RoundTripsAll65536Patterns) {
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const float value = bf16_decode(bits);
    ASSERT_EQ(bf16_is_nan(bits), std::isnan(value)) << std::hex << pattern;
    // A signalling NaN becomes quiet; everything else comes back as it was.
    const uint32_t expected = std::isnan(value) ? pattern | 0x40 : pattern;
    ASSERT_EQ(bf16_encode(value), expected) << std::hex << pattern;
    if (!std::isnan(value)) {
      ASSERT_EQ(static_cast<double>(value), reference::bf16_value(bits)) << std::hex << pattern;
    }
  }
}

TEST(Bf16, EncodesAsMlDtypes) {
  const auto expected = test::expected_formats("bf16_encode");
  ASSERT_GT(expected.size(), 1000u);
  for (const auto& [bits, code] : expected) EXPECT_EQ(bf16_encode(bit_cast<float>(bits)), code) << std::hex << bits;
}

TEST(Bf16, RoundsToNearestEvenAroundEveryPattern) {
  uint64_t differing = 0;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = bit_cast<float>((upper << 16) | lower);
      if (!std::isnan(value)) differing += bf16_encode(value) != reference::bf16_nearest(value);
    }
  }
  EXPECT_EQ(differing, 0u);
  EXPECT_EQ(bf16_encode(std::numeric_limits<float>::max()), 0x7f80) << "rounds beyond the largest number";
}

// The conversions are integer arithmetic: what the host program did to its floating-point state must not reach them.
TEST(Formats, DoNotDependOnRoundingModeOrSubnormalFlushing) {
  std::vector<uint32_t> codes;
  const auto collect = [&codes] {
    for (uint32_t upper = 0; upper < (1u << 12); ++upper) {
      for (const uint32_t lower : {0x00000u, 0x00001u, 0x7ffffu, 0x80000u, 0x80001u}) {
        const float value = bit_cast<float>((upper << 20) | lower);
        codes.push_back(e4m3_encode(value) | e5m2_encode(value) << 8 | uint32_t{bf16_encode(value)} << 16);
        codes.push_back(ue8m0_encode_up(value));
      }
    }
    for (uint32_t code = 0; code < 256; ++code) {
      codes.push_back(bit_cast<uint32_t>(e4m3_decode(static_cast<uint8_t>(code))));
      codes.push_back(bit_cast<uint32_t>(ue8m0_decode(static_cast<uint8_t>(code))));
    }
  };
  collect();
  const std::vector<uint32_t> expected = std::move(codes);
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    codes.clear();
    ASSERT_EQ(std::fesetround(mode), 0);
    collect();
    std::fesetround(FE_TONEAREST);
    EXPECT_TRUE(codes == expected) << "rounding mode " << mode;
  }
#if defined(__SSE2__)
  const unsigned int saved = _mm_getcsr();
  codes.clear();
  _mm_setcsr(saved | 0x8040);  // FTZ and DAZ
  collect();
  _mm_setcsr(saved);
  EXPECT_TRUE(codes == expected) << "FTZ and DAZ";
#endif
}

}  // namespace
}  // namespace megamoe::core
