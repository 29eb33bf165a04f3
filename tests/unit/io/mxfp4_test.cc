// MXFP4 to E4M3: exact where exponents lie within 14 of each other, bounded and counted where they do not.
#include "io/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "core/formats/e4m3.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

constexpr std::array<double, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

struct Mxfp4 {
  uint64_t num_rows, num_cols;
  std::vector<uint8_t> packed, exponents;

  Mxfp4(uint64_t rows, uint64_t cols, uint32_t seed, int lowest, int highest)
      : num_rows(rows), num_cols(cols), packed(rows * cols / 2), exponents(rows * cols / 32) {
    std::mt19937 random(seed);
    for (uint8_t& pair : packed) pair = static_cast<uint8_t>(random());
    for (uint8_t& exponent : exponents) {
      exponent =
          static_cast<uint8_t>(lowest + static_cast<int>(random() % static_cast<uint32_t>(highest - lowest + 1)));
    }
  }
  double value(uint64_t row, uint64_t col) const {
    const uint64_t idx = row * num_cols + col;
    const uint8_t code = col % 2 == 0 ? packed[idx / 2] & 15 : packed[idx / 2] >> 4;
    const double magnitude = std::ldexp(kMagnitudes[code & 7], exponents[idx / 32] - 127);
    return (code & 8) != 0 ? -magnitude : magnitude;
  }
};

struct Expanded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  uint64_t num_rounded = 0;

  double value(const Mxfp4& from, uint64_t row, uint64_t col) const {
    const uint64_t grid_cols = (from.num_cols + 127) / 128;
    return double{core::e4m3_decode(codes[row * from.num_cols + col])} * scales[row / 128 * grid_cols + col / 128];
  }
};

Expanded expand(const Mxfp4& from) {
  Expanded to;
  to.codes.resize(from.num_rows * from.num_cols);
  to.scales.resize((from.num_rows + 127) / 128 * ((from.num_cols + 127) / 128));
  const Status status = expand_mxfp4(from.packed.data(), from.exponents.data(), from.num_rows, from.num_cols,
                                     to.codes.data(), to.scales.data(), to.num_rounded, "tensor");
  EXPECT_TRUE(status.ok()) << status.message();
  return to;
}

TEST(Mxfp4, IsExactWithin14OfTheLargestExponent) {
  for (const int highest : {14, 127, 200, 254}) {
    const Mxfp4 from(200, 192, 5, highest - 14, highest);  // blocks at both edges are smaller
    const Expanded to = expand(from);
    EXPECT_EQ(to.num_rounded, 0u);
    for (uint64_t row = 0; row < from.num_rows; ++row) {
      for (uint64_t col = 0; col < from.num_cols; ++col) {
        ASSERT_EQ(to.value(from, row, col), from.value(row, col)) << row << ", " << col << " at " << highest;
      }
    }
  }
}

TEST(Mxfp4, RoundsBoundedlyBelowAndCountsIt) {
  const Mxfp4 from(128, 128, 6, 90, 127);
  const Expanded to = expand(from);
  uint64_t num_different = 0;
  for (uint64_t row = 0; row < from.num_rows; ++row) {
    for (uint64_t col = 0; col < from.num_cols; ++col) {
      const double error = std::fabs(to.value(from, row, col) - from.value(row, col));
      num_different += error != 0 ? 1 : 0;
      ASSERT_LE(error, std::ldexp(1.0, -16)) << row << ", " << col;
    }
  }
  EXPECT_GT(num_different, 0u);
  EXPECT_EQ(to.num_rounded, num_different);
}

TEST(Mxfp4, ZeroRunsDoNotCountForTheScale) {
  Mxfp4 from(1, 64, 7, 100, 100);
  for (uint64_t pair = 0; pair < 16; ++pair) from.packed[pair] = 0x80;  // +0 and -0
  from.exponents[0] = 250;
  const Expanded to = expand(from);
  EXPECT_EQ(to.num_rounded, 0u);
  EXPECT_EQ(to.scales[0], std::ldexp(1.0f, 100 - 127 - 6));
  for (uint64_t col = 0; col < 64; ++col) EXPECT_EQ(to.value(from, 0, col), from.value(0, col));
}

TEST(Mxfp4, NothingButZerosIsZero) {
  Mxfp4 from(128, 128, 8, 0, 254);
  std::fill(from.packed.begin(), from.packed.end(), uint8_t{0});
  const Expanded to = expand(from);
  EXPECT_TRUE(std::isfinite(to.scales[0]));
  for (const uint8_t code : to.codes) ASSERT_EQ(code & 0x7f, 0);
}

}  // namespace
}  // namespace megamoe::io
