// Packing to E4M3: the rule block by block, its error bound, and edges that are no whole block.
#include "io/pack_weights.h"

#include <cfenv>
#include <cmath>
#include <limits>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

struct Packed {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

Packed pack(const std::vector<float>& weights, uint64_t num_rows, uint64_t num_cols) {
  Packed packed{std::vector<uint8_t>(weights.size(), 0xaa),
                std::vector<float>((num_rows + 127) / 128 * ((num_cols + 127) / 128), -1.0f)};
  EXPECT_TRUE(pack_weights(weights.data(), num_rows, num_cols, packed.codes.data(), packed.scales.data(), "t").ok());
  return packed;
}

/// Values over many magnitudes from a small linear generator.
std::vector<float> many_values(size_t count) {
  std::vector<float> values(count);
  uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), -31 - static_cast<int>(state >> 5 & 15));
  }
  return values;
}

TEST(PackWeights, EveryValueIsWithinHalfAStep) {
  constexpr uint64_t kRows = 320;
  constexpr uint64_t kCols = 192;
  const std::vector<float> weights = many_values(kRows * kCols);
  const Packed packed = pack(weights, kRows, kCols);
  for (uint64_t row = 0; row < kRows; ++row) {
    for (uint64_t col = 0; col < kCols; ++col) {
      const double weight = weights[row * kCols + col];
      const double scale = packed.scales[row / 128 * 2 + col / 128];
      const double value = core::e4m3_decode(packed.codes[row * kCols + col]) * scale;
      // Three fraction bits: half a step is 2^-4 of a normal number, and 2^-10 of the scale below those.
      const double bound = std::max(std::abs(weight) / 16, scale / 1024) * (1 + 1e-6);
      ASSERT_LE(std::abs(value - weight), bound) << row << " " << col << " " << weight;
    }
  }
}

TEST(PackWeights, EachBlockHasTheScaleOfItsLargestValue) {
  constexpr uint64_t kRows = 192;
  constexpr uint64_t kCols = 320;
  std::vector<float> weights(kRows * kCols, 0.0f);
  for (uint64_t row_block = 0; row_block < 2; ++row_block) {
    for (uint64_t col_block = 0; col_block < 3; ++col_block) {
      // The last element of the block, the hardest one to belong to it.
      const uint64_t row = std::min(row_block * 128 + 127, kRows - 1);
      const uint64_t col = std::min(col_block * 128 + 127, kCols - 1);
      weights[row * kCols + col] = -static_cast<float>(row_block * 3 + col_block + 1);
    }
  }
  const Packed packed = pack(weights, kRows, kCols);
  for (size_t block = 0; block < 6; ++block)
    EXPECT_EQ(packed.scales[block], static_cast<float>(block + 1) / 448.0f) << block;
  EXPECT_EQ(packed.codes[191 * kCols + 319], 0xfe);
}

TEST(PackWeights, ZeroAndTinyBlocksHaveFiniteScales) {
  const Packed zeros = pack(std::vector<float>(128 * 128, -0.0f), 128, 128);
  EXPECT_EQ(zeros.scales[0], 1e-10f / 448.0f);
  EXPECT_EQ(core::e4m3_decode(zeros.codes[77]), 0.0f);
  const Packed tiny = pack(std::vector<float>(128 * 128, 1e-30f), 128, 128);
  EXPECT_EQ(tiny.scales[0], 1e-10f / 448.0f);
  EXPECT_EQ(tiny.codes[0], 0);
  const Packed huge = pack(std::vector<float>(128 * 128, std::numeric_limits<float>::max()), 128, 128);
  EXPECT_TRUE(std::isfinite(huge.scales[0]));
  EXPECT_EQ(huge.codes[0], 0x7e);
}

TEST(PackWeights, Bf16IsTheSameAsItsFloats) {
  const std::vector<float> values = many_values(200 * 130);
  std::vector<uint16_t> bits(values.size());
  std::vector<float> rounded(values.size());
  for (size_t idx = 0; idx < values.size(); ++idx) {
    bits[idx] = core::bf16_encode(values[idx]);
    rounded[idx] = core::bf16_decode(bits[idx]);
  }
  const Packed wanted = pack(rounded, 200, 130);
  Packed packed{std::vector<uint8_t>(values.size()), std::vector<float>(4)};
  ASSERT_TRUE(pack_weights_bf16(bits.data(), 200, 130, packed.codes.data(), packed.scales.data(), "t").ok());
  EXPECT_EQ(packed.codes, wanted.codes);
  EXPECT_EQ(packed.scales, wanted.scales);
}

TEST(PackWeights, TheCallersRoundingModeDoesNotMatter) {
  const std::vector<float> weights = many_values(128 * 256);
  const Packed wanted = pack(weights, 128, 256);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const Packed packed = pack(weights, 128, 256);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
  EXPECT_EQ(packed.codes, wanted.codes);
  EXPECT_EQ(packed.scales, wanted.scales);
}

TEST(PackWeights, WhatIsNoNumberIsRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> weights(130 * 130, 1.0f);
    weights[129 * 130 + 128] = bad;
    std::vector<uint8_t> codes(weights.size());
    std::vector<float> scales(4);
    expect_error(pack_weights(weights.data(), 130, 130, codes.data(), scales.data(), "some.weight"), Code::kBadFile,
                 {"\"some.weight\"", "row 129, column 128"});
  }
}

}  // namespace
}  // namespace megamoe::io
