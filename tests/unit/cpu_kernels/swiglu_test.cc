// The activation kernel: its exponential against FP64, and the whole of it against core/activation.h, bit by bit.
#include <cmath>
#include <limits>

#include "core/activation.h"
#include "core/quantize.h"
#include "level_test.h"

namespace megamoe::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The distance from the exact exponential in units of the last place of the FP32 result.
double exp_error_ulp(float x, float got) {
  const double exact = std::exp(static_cast<double>(x));
  if (exact > 3.5e38) return got == kInfinity ? 0 : 1e9;
  if (got == kInfinity) return exact > 3.4028e38 ? 1 : 1e9;
  const int exponent = std::max(exact > 0 ? std::ilogb(exact) : -126, -126);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

float level_exp(float x) {
  float y = 0;
  exp_row(&x, 1, &y);
  return y;
}

struct Activated {
  std::vector<uint8_t> codes;
  std::vector<uint32_t> scale_bits;
  bool operator==(const Activated&) const = default;
};

struct Inputs {
  Inputs(int64_t num_rows, int64_t row_width, float magnitude, uint32_t seed) : rows(num_rows), width(row_width) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, magnitude);
    std::uniform_real_distribution<float> weight(0.0f, 1.0f);
    gate.resize(static_cast<size_t>(rows * width));
    up.resize(gate.size());
    weights.resize(static_cast<size_t>(rows));
    for (float& value : gate) value = normal(random);
    for (float& value : up) value = normal(random);
    for (float& value : weights) value = weight(random);
  }

  Activated run(int64_t row, int64_t num_rows) const {
    const int64_t codes_stride = width + 32;
    std::vector<uint8_t> codes(static_cast<size_t>(num_rows * codes_stride), 0xee);
    std::vector<float> scales(static_cast<size_t>(num_rows * 3));
    SwigluBlock block;
    block.gate = gate.data() + row * width;
    block.gate_row_stride = width;
    block.up = up.data() + row * width;
    block.up_row_stride = width;
    block.row_weights = weights.data() + row;
    block.clamp = clamp;
    block.num_rows = num_rows;
    block.width = width;
    block.codes = codes.data();
    block.codes_row_stride = codes_stride;
    block.scales = scales.data();
    block.scales_row_stride = 3;
    swiglu_quantize_rows(block);
    Activated result;
    for (int64_t r = 0; r < num_rows; ++r) {
      const auto begin = codes.begin() + r * codes_stride;
      result.codes.insert(result.codes.end(), begin, begin + width);
      result.scale_bits.push_back(bits_of(scales[static_cast<size_t>(3 * r)]));
      EXPECT_EQ(begin[width], 0xee);
    }
    return result;
  }

  /// The scalar statement, with the exponential under test.
  Activated expected() const {
    Activated result;
    result.codes.resize(gate.size());
    for (int64_t row = 0; row < rows; ++row) {
      const auto load = [&](uint32_t i) {
        const size_t index = static_cast<size_t>(row * width) + i;
        return core::swiglu(gate[index], up[index], clamp, weights[static_cast<size_t>(row)], level_exp);
      };
      const float scale = core::quantize_group(static_cast<uint32_t>(width), load, result.codes.data() + row * width);
      result.scale_bits.push_back(bits_of(scale));
    }
    return result;
  }

  int64_t rows, width;
  float clamp = kInfinity;
  std::vector<float> gate, up, weights;
};

class SwigluTest : public LevelTest {};
MEGAMOE_EVERY_LEVEL(SwigluTest);

TEST_P(SwigluTest, ExpIsWithinTwoUlpOverAllOfFp32) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 4093)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (int i = 0; i <= 400000; ++i) x.push_back(-105.0f + 195.0f * static_cast<float>(i) / 400000.0f);
  std::vector<float> y(x.size());
  exp_row(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  float worst_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i]));
    } else if (const double error = exp_error_ulp(x[i], y[i]); error > worst) {
      worst = error;
      worst_x = x[i];
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 2.0) << "at " << worst_x;
  EXPECT_EQ(level_exp(0.0f), 1.0f);
  EXPECT_EQ(level_exp(kInfinity), kInfinity);
  EXPECT_EQ(bits_of(level_exp(-kInfinity)), 0u);

  std::vector<float> scalar(x.size());
  ASSERT_TRUE(set_simd_level("scalar").ok());
  exp_row(x.data(), static_cast<int64_t>(x.size()), scalar.data());
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) continue;
    ASSERT_EQ(bits_of(y[i]), bits_of(scalar[i])) << "at " << x[i];
  }
}

TEST_P(SwigluTest, HasTheBitsOfTheScalarStatement) {
  for (const int64_t width : {64, 128}) {
    for (const float magnitude : {1e-8f, 1.0f, 10.0f, 200.0f}) {
      for (const float clamp : {kInfinity, 7.0f, 0.5f}) {
        Inputs inputs(9, width, magnitude, 1);
        inputs.clamp = clamp;
        EXPECT_EQ(inputs.run(0, 9), inputs.expected())
            << width << " wide, magnitude " << magnitude << ", clamp " << clamp;
      }
    }
  }
}

TEST_P(SwigluTest, IsCloseToFp64) {
  const Inputs inputs(16, 128, 3.0f, 2);
  const Activated got = inputs.run(0, 16);
  for (size_t row = 0; row < 16; ++row) {
    const auto scale = static_cast<double>(std::bit_cast<float>(got.scale_bits[row]));
    double amax = 0;
    for (size_t i = row * 128; i < (row + 1) * 128; ++i) {
      const auto gate = static_cast<double>(inputs.gate[i]);
      const double h =
          gate / (1.0 + std::exp(-gate)) * static_cast<double>(inputs.up[i]) * static_cast<double>(inputs.weights[row]);
      const double value = static_cast<double>(core::e4m3_decode(got.codes[i])) * scale;
      // Half a step of E4M3: 2^-4 of a normal number, 2^-10 scales below those.
      EXPECT_NEAR(value, h, std::abs(h) * 0.0625 * 1.0001 + scale * 0.000977)
          << "row " << row << ", column " << i % 128;
      amax = std::max(amax, std::abs(h));
    }
    EXPECT_NEAR(scale, amax / 448.0, amax / 448.0 * 1e-6);
  }
}

TEST_P(SwigluTest, ARowAloneHasTheBitsItHasInABatch) {
  const Inputs inputs(37, 128, 3.0f, 3);
  const Activated batch = inputs.run(0, 37);
  for (int64_t row = 0; row < 37; ++row) {
    const Activated alone = inputs.run(row, 1);
    EXPECT_EQ(alone.codes,
              std::vector<uint8_t>(batch.codes.begin() + row * 128, batch.codes.begin() + (row + 1) * 128));
    EXPECT_EQ(alone.scale_bits[0], batch.scale_bits[static_cast<size_t>(row)]);
  }
}

TEST_P(SwigluTest, NanAndInfinityStayInTheirRow) {
  Inputs inputs(6, 64, 1.0f, 4);
  const Activated clean = inputs.run(0, 6);
  inputs.gate[1 * 64 + 3] = std::numeric_limits<float>::quiet_NaN();
  inputs.up[2 * 64 + 5] = -kInfinity;
  inputs.gate[3 * 64 + 7] = -kInfinity;  // -inf / inf
  inputs.weights[4] = std::numeric_limits<float>::quiet_NaN();
  const Activated got = inputs.run(0, 6);
  EXPECT_EQ(got, inputs.expected());
  EXPECT_EQ(got.codes[1 * 64 + 3], 0x7f);
  EXPECT_EQ(got.codes[2 * 64 + 5], 0x7f);
  EXPECT_EQ(got.codes[3 * 64 + 7], 0x7f);
  EXPECT_EQ(got.codes[4 * 64 + 9], 0x7f);
  for (const size_t row : {0u, 5u}) {
    for (size_t i = row * 64; i < (row + 1) * 64; ++i) EXPECT_EQ(got.codes[i], clean.codes[i]);
    EXPECT_EQ(got.scale_bits[row], clean.scale_bits[row]);
  }
}

TEST_P(SwigluTest, TheCallersFpStateDoesNotMatter) {
  const Inputs tiny(4, 128, 1e-20f, 5);
  const Inputs large(4, 128, 60.0f, 6);
  const Activated expected_tiny = tiny.run(0, 4);
  const Activated expected_large = large.run(0, 4);
  const float expected_exp = level_exp(-90.0f);
  ASSERT_EQ(std::fpclassify(expected_exp), FP_SUBNORMAL);
  Activated got_tiny;
  Activated got_large;
  float got_exp = 0;
  {
    const HostileFpState state;
    got_tiny = tiny.run(0, 4);
    got_large = large.run(0, 4);
    got_exp = level_exp(-90.0f);
    EXPECT_TRUE(state.is_intact());
  }
  EXPECT_EQ(got_tiny, expected_tiny);
  EXPECT_EQ(got_large, expected_large);
  EXPECT_EQ(bits_of(got_exp), bits_of(expected_exp));
}

}  // namespace
}  // namespace megamoe::cpu
