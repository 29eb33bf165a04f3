// Rounding to BF16 and the combine sum at every SIMD level, bit by bit against scalar code.
#include <cmath>
#include <limits>

#include "core/formats/bf16.h"
#include "level_test.h"

namespace megamoe::cpu {
namespace {

uint16_t expected_bf16(float value) { return std::isnan(value) ? uint16_t{0x7fc0} : core::bf16_encode(value); }

class Bf16Test : public LevelTest {};
MEGAMOE_EVERY_LEVEL(Bf16Test);

TEST_P(Bf16Test, RoundsEveryExponentAndTieToEven) {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 0x10000; upper += 3) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::vector<uint16_t> got(x.size());
  float_rows_to_bf16(x.data(), 0, 1, static_cast<int64_t>(x.size()), got.data(), 0);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], expected_bf16(x[i])) << std::hex << bits_of(x[i]);
}

TEST_P(Bf16Test, RowsOfAnyWidthAndStride) {
  std::mt19937 random(1);
  for (const int64_t columns : {1, 5, 16, 63, 128, 200}) {
    std::vector<float> x(static_cast<size_t>(3 * (columns + 7)));
    for (float& value : x) value = std::normal_distribution<float>()(random);
    std::vector<uint16_t> got(static_cast<size_t>(3 * (columns + 2)), 0xeeee);
    float_rows_to_bf16(x.data(), columns + 7, 3, columns, got.data(), columns + 2);
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t c = 0; c < columns + 2; ++c) {
        const uint16_t wanted =
            c < columns ? expected_bf16(x[static_cast<size_t>(row * (columns + 7) + c)]) : uint16_t{0xeeee};
        ASSERT_EQ(got[static_cast<size_t>(row * (columns + 2) + c)], wanted);
      }
    }
  }
}

class CombineTest : public LevelTest {
 protected:
  static std::vector<uint16_t> combine(const std::vector<std::vector<uint16_t>>& rows, int64_t hidden) {
    std::vector<const uint16_t*> pointers;
    for (const std::vector<uint16_t>& row : rows) pointers.push_back(row.data());
    std::vector<uint16_t> out(static_cast<size_t>(hidden) + 1, 0xeeee);
    combine_rows(pointers.data(), static_cast<int64_t>(pointers.size()), hidden, out.data());
    EXPECT_EQ(out.back(), 0xeeee);
    out.pop_back();
    return out;
  }

  static std::vector<uint16_t> expected(const std::vector<std::vector<uint16_t>>& rows, int64_t hidden) {
    std::vector<uint16_t> out;
    for (size_t i = 0; i < static_cast<size_t>(hidden); ++i) {
      float sum = 0.0f;
      for (const std::vector<uint16_t>& row : rows) sum += core::bf16_decode(row[i]);
      out.push_back(expected_bf16(sum));
    }
    return out;
  }

  static std::vector<std::vector<uint16_t>> random_rows(size_t count, int64_t hidden, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<uint16_t>> rows(count, std::vector<uint16_t>(static_cast<size_t>(hidden)));
    for (std::vector<uint16_t>& row : rows) {
      // The lower 15 bits at random: all exponents, so that the order of the sum shows.
      for (uint16_t& value : row)
        value = static_cast<uint16_t>(0x3000u + random() % 0x1800u + (random() % 2) * 0x8000u);
    }
    return rows;
  }
};
MEGAMOE_EVERY_LEVEL(CombineTest);

TEST_P(CombineTest, SumsInSlotOrderAndRoundsOnce) {
  for (const size_t slots : {1u, 2u, 6u, 8u, 32u}) {
    for (const int64_t hidden : {128, 131, 7168}) {
      const auto rows = random_rows(slots, hidden, static_cast<uint32_t>(slots));
      ASSERT_EQ(combine(rows, hidden), expected(rows, hidden)) << slots << " slots, hidden " << hidden;
    }
  }
  auto rows = random_rows(6, 1024, 9);
  const std::vector<uint16_t> in_order = combine(rows, 1024);
  std::reverse(rows.begin(), rows.end());
  EXPECT_NE(combine(rows, 1024), in_order) << "the data must be able to show the order";
}

TEST_P(CombineTest, NoRowsAndNegativeZerosGivePositiveZero) {
  EXPECT_EQ(combine({}, 128), std::vector<uint16_t>(128, 0));
  EXPECT_EQ(combine({std::vector<uint16_t>(128, 0x8000)}, 128), std::vector<uint16_t>(128, 0));
}

TEST_P(CombineTest, NanAndInfinity) {
  std::vector<std::vector<uint16_t>> rows(2, std::vector<uint16_t>(128, 0x3f80));
  rows[0][1] = 0xff80;
  rows[0][2] = 0x7f80;
  rows[1][2] = 0xff80;
  rows[1][3] = 0xffff;
  rows[0][4] = rows[1][4] = 0x7f7f;
  const std::vector<uint16_t> got = combine(rows, 128);
  EXPECT_EQ(got[0], 0x4000);
  EXPECT_EQ(got[1], 0xff80);
  EXPECT_EQ(got[2], 0x7fc0);
  EXPECT_EQ(got[3], 0x7fc0);
  EXPECT_EQ(got[4], 0x7f80);
}

TEST_P(CombineTest, TheCallersFpStateDoesNotMatter) {
  auto rows = random_rows(6, 256, 4);
  for (size_t i = 0; i < 64; ++i) {
    for (auto& row : rows) row[i] &= 0x807f;  // subnormals
  }
  const std::vector<uint16_t> wanted = expected(rows, 256);
  std::vector<uint16_t> got;
  {
    const HostileFpState state;
    got = combine(rows, 256);
    EXPECT_TRUE(state.is_intact());
  }
  EXPECT_EQ(got, wanted);
}

}  // namespace
}  // namespace megamoe::cpu
