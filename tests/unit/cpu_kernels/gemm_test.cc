// The FP8 GEMM block against plain loops: the same bits for every level, row count, column count and position.
#include <cmath>
#include <limits>

#include "core/formats/e4m3.h"
#include "level_test.h"

namespace megamoe::cpu {
namespace {

using core::e4m3_decode;

/// Operands of one GEMM, with row strides wider than the rows and scales stored group by group.
struct Operands {
  Operands(int64_t rows, int64_t columns, int64_t depth, uint32_t seed)
      : num_rows(rows), num_columns(columns), k(depth), num_groups((depth + kScaleGroup - 1) / kScaleGroup) {
    std::mt19937 random(seed);
    a_codes = random_codes(random, num_rows * a_stride());
    b_codes = random_codes(random, num_columns * b_stride());
    std::uniform_real_distribution<float> scale(1e-3f, 2e-2f);
    a_scales.resize(static_cast<size_t>(num_groups * num_rows));
    b_scales.resize(static_cast<size_t>(2 * num_groups));
    for (float& value : a_scales) value = scale(random);
    for (float& value : b_scales) value = scale(random);
  }

  static std::vector<uint8_t> random_codes(std::mt19937& random, int64_t count) {
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    for (uint8_t& code : codes) {
      do code = static_cast<uint8_t>(random());
      while (core::e4m3_is_nan(code));
    }
    return codes;
  }

  int64_t a_stride() const { return k + 5; }
  int64_t b_stride() const { return k + 64; }
  uint8_t a(int64_t row, int64_t i) const { return a_codes[static_cast<size_t>(row * a_stride() + i)]; }
  uint8_t b(int64_t column, int64_t i) const { return b_codes[static_cast<size_t>(column * b_stride() + i)]; }
  float a_scale(int64_t row, int64_t group) const { return a_scales[static_cast<size_t>(group * num_rows + row)]; }
  float b_scale(int64_t group) const { return b_scales[static_cast<size_t>(2 * group)]; }

  /// The block of `rows` rows from `row` and `columns` columns from `column`; sums are dense.
  std::vector<float> run(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    const int64_t sums_stride = columns + 3;
    const float untouched = 12345.0f;
    std::vector<float> sums(static_cast<size_t>(rows * sums_stride), untouched);
    AlignedScratch scratch(gemm_scratch_bytes(rows));
    GemmBlock block;
    block.a_codes = a_codes.data() + row * a_stride();
    block.a_row_stride = a_stride();
    block.a_scales = a_scales.data() + row;
    block.a_scale_row_stride = 1;
    block.a_scale_group_stride = num_rows;
    block.b_codes = b_codes.data() + column * b_stride();
    block.b_row_stride = b_stride();
    block.b_scales = b_scales.data();
    block.b_scale_group_stride = 2;
    block.num_rows = rows;
    block.num_columns = columns;
    block.k = k;
    block.sums = sums.data();
    block.sums_row_stride = sums_stride;
    block.scratch = scratch.data();
    gemm_fp8_block(block);

    std::vector<float> dense;
    for (int64_t r = 0; r < rows; ++r) {
      const auto begin = sums.begin() + r * sums_stride;
      dense.insert(dense.end(), begin, begin + columns);
      for (int64_t c = columns; c < sums_stride; ++c) EXPECT_EQ(begin[c], untouched) << "written beyond the columns";
    }
    return dense;
  }

  int64_t num_rows, num_columns, k, num_groups;
  std::vector<uint8_t> a_codes, b_codes;
  std::vector<float> a_scales, b_scales;
};

/// What docs/numerics.md states, in ascending k.
std::vector<float> expected_sums(const Operands& operands) {
  std::vector<float> sums;
  std::vector<float> a(static_cast<size_t>(operands.k));
  std::vector<float> b(static_cast<size_t>(operands.num_columns * operands.k));
  for (int64_t column = 0; column < operands.num_columns; ++column) {
    for (int64_t i = 0; i < operands.k; ++i) {
      b[static_cast<size_t>(column * operands.k + i)] = e4m3_decode(operands.b(column, i));
    }
  }
  for (int64_t row = 0; row < operands.num_rows; ++row) {
    for (int64_t i = 0; i < operands.k; ++i) a[static_cast<size_t>(i)] = e4m3_decode(operands.a(row, i));
    for (int64_t column = 0; column < operands.num_columns; ++column) {
      const float* weights = b.data() + column * operands.k;
      float sum = 0;
      for (int64_t group = 0; group < operands.num_groups; ++group) {
        float part = 0;
        const int64_t end = std::min(operands.k, (group + 1) * kScaleGroup);
        for (int64_t i = group * kScaleGroup; i < end; ++i) part += a[static_cast<size_t>(i)] * weights[i];
        sum = std::fmaf(part, operands.a_scale(row, group) * operands.b_scale(group), sum);
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

/// Largest difference from an FP64 sum, in units of the sum of the terms' magnitudes.
double error_against_fp64(const Operands& operands, const std::vector<float>& sums) {
  double worst = 0;
  for (int64_t row = 0; row < operands.num_rows; ++row) {
    for (int64_t column = 0; column < operands.num_columns; ++column) {
      double exact = 0;
      double magnitude = 0;
      for (int64_t i = 0; i < operands.k; ++i) {
        const int64_t group = i / kScaleGroup;
        const double term = static_cast<double>(e4m3_decode(operands.a(row, i))) *
                            static_cast<double>(e4m3_decode(operands.b(column, i))) *
                            static_cast<double>(operands.a_scale(row, group)) *
                            static_cast<double>(operands.b_scale(group));
        exact += term;
        magnitude += std::abs(term);
      }
      const auto got = static_cast<double>(sums[static_cast<size_t>(row * operands.num_columns + column)]);
      worst = std::max(worst, std::abs(got - exact) / magnitude);
    }
  }
  return worst;
}

class GemmTest : public LevelTest {};
MEGAMOE_EVERY_LEVEL(GemmTest);

TEST_P(GemmTest, EveryShapeHasTheBitsOfPlainLoops) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 13, 25, 64, 100, 256}) {
    for (const int64_t columns : {1, 8, 37, 64, 128}) {
      for (const int64_t k : {64, 128, 192, 320, 4096}) {
        if (k == 4096 && rows * columns > 64 * 64) continue;  // BigBlock below
        const Operands operands(rows, columns, k, static_cast<uint32_t>(rows * 1000 + columns * 10 + k));
        ASSERT_EQ(bits_of(operands.run(0, rows, 0, columns)), bits_of(expected_sums(operands)))
            << rows << " rows, " << columns << " columns, k " << k;
      }
    }
  }
}

TEST_P(GemmTest, BigBlockHasTheBitsOfPlainLoops) {
  const Operands operands(256, 128, 4096, 7);
  EXPECT_EQ(bits_of(operands.run(0, 256, 0, 128)), bits_of(expected_sums(operands)));
}

TEST_P(GemmTest, IsCloseToFp64) {
  for (const int64_t k : {64, 320, 4096}) {
    const Operands operands(8, 64, k, static_cast<uint32_t>(k));
    EXPECT_LT(error_against_fp64(operands, operands.run(0, 8, 0, 64)), 1e-6) << "k " << k;
  }
}

TEST_P(GemmTest, ARowAndATileAloneHaveTheBitsTheyHaveInABatch) {
  const Operands operands(100, 128, 320, 11);
  const std::vector<float> batch = operands.run(0, 100, 0, 128);
  for (int64_t row = 0; row < 100; ++row) {
    const std::vector<float> expected(batch.begin() + row * 128, batch.begin() + (row + 1) * 128);
    ASSERT_EQ(bits_of(operands.run(row, 1, 0, 128)), bits_of(expected)) << "row " << row;
  }
  for (const int64_t column : {0, 1, 40, 120}) {
    const std::vector<float> tile = operands.run(30, 13, column, 8);
    for (int64_t row = 0; row < 13; ++row) {
      for (int64_t c = 0; c < 8; ++c) {
        ASSERT_EQ(bits_of(tile[static_cast<size_t>(row * 8 + c)]),
                  bits_of(batch[static_cast<size_t>((30 + row) * 128 + column + c)]));
      }
    }
  }
}

/// 1 x code at position k, all other products 0: the sum is the decoded code.
TEST_P(GemmTest, EveryCodeAtEveryDepthIsDecodedExactly) {
  for (int64_t position = 0; position < kScaleGroup; ++position) {
    for (int half = 0; half < 2; ++half) {
      Operands weights(1, 128, 128, 1);
      Operands activations(128, 1, 128, 1);
      for (Operands* operands : {&weights, &activations}) {
        std::fill(operands->a_codes.begin(), operands->a_codes.end(), uint8_t{0});
        std::fill(operands->b_codes.begin(), operands->b_codes.end(), uint8_t{0});
        std::fill(operands->a_scales.begin(), operands->a_scales.end(), 1.0f);
        std::fill(operands->b_scales.begin(), operands->b_scales.end(), 1.0f);
      }
      const uint8_t one = 0x38;
      weights.a_codes[static_cast<size_t>(position)] = one;
      activations.b_codes[static_cast<size_t>(position)] = one;
      for (int64_t i = 0; i < 128; ++i) {
        const auto code = static_cast<uint8_t>(half * 128 + i);
        weights.b_codes[static_cast<size_t>(i * weights.b_stride() + position)] = code;
        activations.a_codes[static_cast<size_t>(i * activations.a_stride() + position)] = code;
      }
      const std::vector<float> of_weights = weights.run(0, 1, 0, 128);
      const std::vector<float> of_activations = activations.run(0, 128, 0, 1);
      for (size_t i = 0; i < 128; ++i) {
        const auto code = static_cast<uint8_t>(static_cast<size_t>(half) * 128 + i);
        if (core::e4m3_is_nan(code)) {
          ASSERT_TRUE(std::isnan(of_weights[i]) && std::isnan(of_activations[i])) << "code " << int{code};
        } else {
          ASSERT_EQ(of_weights[i], e4m3_decode(code)) << "weight code " << int{code} << " at " << position;
          ASSERT_EQ(of_activations[i], e4m3_decode(code)) << "activation code " << int{code} << " at " << position;
        }
      }
    }
  }
}

TEST_P(GemmTest, ANanStaysInItsRowOrColumn) {
  Operands operands(13, 64, 192, 3);
  operands.a_codes[static_cast<size_t>(5 * operands.a_stride() + 100)] = 0x7f;
  operands.b_codes[static_cast<size_t>(17 * operands.b_stride() + 190)] = 0xff;
  const std::vector<float> sums = operands.run(0, 13, 0, 64);
  for (size_t row = 0; row < 13; ++row) {
    for (size_t column = 0; column < 64; ++column) {
      EXPECT_EQ(std::isnan(sums[row * 64 + column]), row == 5 || column == 17) << row << ", " << column;
    }
  }
}

TEST_P(GemmTest, InfiniteScalesFollowFmaf) {
  Operands operands(3, 8, 256, 4);
  operands.a_scales[1] = std::numeric_limits<float>::infinity();
  const std::vector<float> sums = operands.run(0, 3, 0, 8);
  const std::vector<float> expected = expected_sums(operands);
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(std::isfinite(sums[i]), i / 8 != 1);
    EXPECT_TRUE(bits_of(sums[i]) == bits_of(expected[i]) || (std::isnan(sums[i]) && std::isnan(expected[i])));
  }
}

TEST_P(GemmTest, TheCallersFpStateDoesNotMatterAndIsKept) {
  Operands operands(13, 64, 320, 5);
  for (float& scale : operands.b_scales) scale *= 1e-38f;  // subnormal sums
  const std::vector<float> expected = operands.run(0, 13, 0, 64);
  ASSERT_TRUE(
      std::any_of(expected.begin(), expected.end(), [](float sum) { return std::fpclassify(sum) == FP_SUBNORMAL; }));
  std::vector<float> hostile;
  bool is_intact = false;
  {
    const HostileFpState state;
    hostile = operands.run(0, 13, 0, 64);
    is_intact = state.is_intact();
  }
  EXPECT_TRUE(is_intact);
  EXPECT_EQ(bits_of(hostile), bits_of(expected));
}

}  // namespace
}  // namespace megamoe::cpu
