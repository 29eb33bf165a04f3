// Where scales lie and how shared-memory tiles are swizzled, against counting loops and hand-made offsets.
#include <gtest/gtest.h>

#include <set>

#include "core/scales.h"
#include "core/swizzle.h"

namespace megamoe::core {
namespace {

TEST(Scales, GroupsOfARowCoverItOnce) {
  for (const uint32_t columns : {64u, 128u, 192u, 320u, 7168u}) {
    uint32_t covered = 0;
    for (uint32_t group = 0; group < num_scale_groups(columns); ++group) covered += scale_group_columns(columns, group);
    EXPECT_EQ(covered, columns);
  }
  EXPECT_EQ(num_scale_groups(192), 2u);
  EXPECT_EQ(scale_group_columns(192, 0), 128u);
  EXPECT_EQ(scale_group_columns(192, 1), 64u);
}

TEST(Scales, ActivationsInBothMajorOrders) {
  const auto row_major = ActivationScaleLayout::row_major(512);
  EXPECT_EQ(row_major.index(3, 2), 3u * 4 + 2);
  const auto group_major = ActivationScaleLayout::group_major(100);
  EXPECT_EQ(group_major.index(3, 2), 2u * 100 + 3);
  EXPECT_EQ(group_major.index(0, 40'000'000), 4'000'000'000u) << "offsets do not wrap at 32 bits";
  EXPECT_EQ(row_major.index(uint64_t{1} << 33, 1), (uint64_t{1} << 35) + 1);
}

TEST(Scales, GateAndUpHaveTheirOwnGrids) {
  // I = 192: two row blocks for each half; up row 0 does not share the block of gate row 191.
  const auto layout = W13ScaleLayout::of(256, 192);
  EXPECT_EQ(layout.elements_per_expert(), 2u * 2 * 2);
  uint64_t expected = 0;
  for (uint64_t expert = 0; expert < 3; ++expert) {
    for (const W13Half half : {W13Half::kGate, W13Half::kUp}) {
      for (const uint32_t row : {0u, 128u}) {
        for (uint32_t k_block = 0; k_block < 2; ++k_block) {
          EXPECT_EQ(layout.index(expert, half, row, k_block), expected);
          EXPECT_EQ(layout.index(expert, half, row + 63, k_block), expected);
          ++expected;
        }
      }
    }
  }
}

TEST(Scales, DownProjection) {
  const auto layout = W2ScaleLayout::of(640, 384 - 64);
  EXPECT_EQ(layout.row_blocks, 5u);
  EXPECT_EQ(layout.k_blocks, 3u);
  EXPECT_EQ(layout.index(0, 127, 2), 2u);
  EXPECT_EQ(layout.index(0, 128, 0), 3u);
  EXPECT_EQ(layout.index(2, 639, 2), 2u * 15 + 14);
}

TEST(Scales, AConcatenatedGridIsTheSameMemoryOnlyForMultiplesOf128) {
  EXPECT_TRUE(concatenated_w13_scales_match(256));
  EXPECT_FALSE(concatenated_w13_scales_match(192));
  const auto layout = W13ScaleLayout::of(512, 256);
  for (uint32_t row = 0; row < 512; ++row) {
    const W13Half half = row < 256 ? W13Half::kGate : W13Half::kUp;
    EXPECT_EQ(layout.index(0, half, row % 256, 3), row / 128 * 4 + 3);
  }
}

TEST(Swizzle, PermutesTheChunksOfEightRows) {
  EXPECT_EQ(swizzle_128b(0), 0u);
  EXPECT_EQ(swizzle_128b(1 * 128), 1u * 128 + 16) << "row 1, chunk 0 moves to chunk 1";
  EXPECT_EQ(swizzle_128b(7 * 128 + 7 * 16 + 5), 7u * 128 + 5) << "row 7, chunk 7 moves to chunk 0";
  EXPECT_EQ(swizzle_128b(3 * 128 + 2 * 16), 3u * 128 + 1 * 16);
  EXPECT_EQ(swizzle_128b(8 * 128 + 3 * 16), 8u * 128 + 3 * 16) << "the pattern repeats after 8 rows";
}

TEST(Swizzle, IsItsOwnInverseAndStaysInItsRow) {
  std::set<uint64_t> seen;
  for (uint64_t offset = 0; offset < 3 * 1024; ++offset) {
    const uint64_t swizzled = swizzle_128b(offset);
    EXPECT_EQ(unswizzle_128b(swizzled), offset);
    EXPECT_EQ(swizzled / 128, offset / 128);
    EXPECT_EQ(swizzled % 16, offset % 16);
    seen.insert(swizzled);
  }
  EXPECT_EQ(seen.size(), 3u * 1024);
}

// Eight rows of one column chunk land in eight different chunks: no bank conflict when a column is read.
TEST(Swizzle, OneColumnUsesEveryChunk) {
  for (uint64_t chunk = 0; chunk < 8; ++chunk) {
    std::set<uint64_t> chunks;
    for (uint64_t row = 0; row < 8; ++row) chunks.insert(swizzle_128b(row * 128 + chunk * 16) % 128 / 16);
    EXPECT_EQ(chunks.size(), 8u);
  }
}

}  // namespace
}  // namespace megamoe::core
