// The activation quantiser at every SIMD level against the scalar statement in core/quantize.h, bit by bit.
#include <cmath>
#include <limits>

#include "core/formats/bf16.h"
#include "core/integer.h"
#include "core/quantize.h"
#include "level_test.h"

namespace megamoe::cpu {
namespace {

using core::bf16_encode;

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<uint32_t> scale_bits;
  bool operator==(const Quantized&) const = default;
};

/// Every stride is wider than its row, and what lies between must stay untouched.
Quantized quantize(const std::vector<uint16_t>& x, int64_t hidden) {
  const int64_t rows = static_cast<int64_t>(x.size()) / hidden;
  const int64_t groups = hidden / kScaleGroup;
  std::vector<uint16_t> padded_x(static_cast<size_t>(rows * (hidden + 1)));
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(x.begin() + row * hidden, hidden, padded_x.begin() + row * (hidden + 1));
  }
  std::vector<uint8_t> codes(static_cast<size_t>(rows * (hidden + 16)), 0xee);
  std::vector<float> scales(static_cast<size_t>(rows * (groups + 2)), -1.0f);
  quantize_rows_bf16(padded_x.data(), hidden + 1, rows, hidden, codes.data(), hidden + 16, scales.data(), groups + 2);
  Quantized result;
  for (int64_t row = 0; row < rows; ++row) {
    const auto codes_row = codes.begin() + row * (hidden + 16);
    const auto scales_row = scales.begin() + row * (groups + 2);
    result.codes.insert(result.codes.end(), codes_row, codes_row + hidden);
    for (int64_t group = 0; group < groups; ++group) result.scale_bits.push_back(bits_of(scales_row[group]));
    EXPECT_EQ(codes_row[hidden], 0xee);
    EXPECT_EQ(scales_row[groups], -1.0f);
  }
  return result;
}

Quantized expected(const std::vector<uint16_t>& x) {
  Quantized result;
  result.codes.resize(x.size());
  for (size_t i = 0; i < x.size(); i += kScaleGroup) {
    const float scale = core::quantize_group(
        kScaleGroup, [&](uint32_t j) { return core::bf16_decode(x[i + j]); }, result.codes.data() + i);
    result.scale_bits.push_back(bits_of(scale));
  }
  return result;
}

std::vector<uint16_t> random_rows(int64_t count, float magnitude, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, magnitude);
  std::vector<uint16_t> x(static_cast<size_t>(count));
  for (uint16_t& value : x) value = bf16_encode(normal(random));
  return x;
}

class QuantizeTest : public LevelTest {};
MEGAMOE_EVERY_LEVEL(QuantizeTest);

TEST_P(QuantizeTest, RandomRowsOfAllMagnitudes) {
  for (const float magnitude : {1e-39f, 1e-30f, 3e-11f, 1e-10f, 1e-3f, 1.0f, 300.0f, 1e20f, 1e38f}) {
    const std::vector<uint16_t> x = random_rows(12 * 512, magnitude, 1);
    EXPECT_EQ(quantize(x, 512), expected(x)) << "magnitude " << magnitude;
  }
}

TEST_P(QuantizeTest, RandomBitPatterns) {
  std::mt19937 random(2);
  std::vector<uint16_t> x(400 * kScaleGroup);
  for (uint16_t& value : x) value = static_cast<uint16_t>(random());
  EXPECT_EQ(quantize(x, kScaleGroup), expected(x));
}

/// One 448 per group makes the scale 1, so that every tie between two codes is met exactly.
TEST_P(QuantizeTest, EveryBf16ValueUpTo448AtScaleOne) {
  std::vector<uint16_t> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (!(std::abs(core::bf16_decode(static_cast<uint16_t>(bits))) <= 448.0f)) continue;
    if (x.size() % kScaleGroup == 0) x.push_back(bf16_encode(448.0f));
    x.push_back(static_cast<uint16_t>(bits));
  }
  x.resize(core::align_up<size_t>(x.size(), kScaleGroup), 0);
  const Quantized got = quantize(x, kScaleGroup);
  EXPECT_EQ(got, expected(x));
  EXPECT_EQ(got.scale_bits[0], bits_of(1.0f));
}

TEST_P(QuantizeTest, SpecialGroups) {
  const float infinity = std::numeric_limits<float>::infinity();
  const uint16_t nan = 0x7fc0;
  std::vector<uint16_t> zeros(kScaleGroup, 0);
  std::vector<uint16_t> negative_zeros(kScaleGroup, 0x8000);
  std::vector<uint16_t> subnormals(kScaleGroup, 0x0001);
  std::vector<uint16_t> nans(kScaleGroup, nan);
  std::vector<uint16_t> one_nan = random_rows(kScaleGroup, 1.0f, 3);
  one_nan[77] = 0xffff;
  std::vector<uint16_t> one_infinity = random_rows(kScaleGroup, 1.0f, 4);
  one_infinity[50] = bf16_encode(-infinity);
  std::vector<uint16_t> x;
  for (const auto* group : {&zeros, &negative_zeros, &subnormals, &nans, &one_nan, &one_infinity}) {
    x.insert(x.end(), group->begin(), group->end());
  }
  const Quantized got = quantize(x, kScaleGroup);
  EXPECT_EQ(got, expected(x));
  EXPECT_EQ(got.codes[0], 0);
  EXPECT_EQ(got.scale_bits[0], bits_of(1e-10f / 448.0f));
  EXPECT_EQ(got.codes[2 * kScaleGroup], 0);
  EXPECT_EQ(got.codes[3 * kScaleGroup], 0x7f);
  EXPECT_EQ(got.codes[4 * kScaleGroup + 77], 0x7f);
  EXPECT_EQ(got.scale_bits[5], bits_of(infinity));
  EXPECT_EQ(got.codes[5 * kScaleGroup + 50], 0x7f);
  EXPECT_EQ(got.codes[5 * kScaleGroup + 51] & 0x7f, 0);
}

TEST_P(QuantizeTest, TheCallersFpStateDoesNotMatter) {
  std::vector<uint16_t> x = random_rows(8 * kScaleGroup, 1e-38f, 5);
  const std::vector<uint16_t> ordinary = random_rows(8 * kScaleGroup, 1.0f, 6);
  x.insert(x.end(), ordinary.begin(), ordinary.end());
  const Quantized wanted = expected(x);
  Quantized got;
  {
    const HostileFpState state;
    got = quantize(x, kScaleGroup);
    EXPECT_TRUE(state.is_intact());
  }
  EXPECT_EQ(got, wanted);
}

}  // namespace
}  // namespace megamoe::cpu
