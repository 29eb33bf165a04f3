// The pool plan and the walk over a source's rows: every row lands once, in the block that the plan counted it for.
#include "protocol/routing.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <vector>

namespace megamoe::protocol {
namespace {

TEST(Routing, EverySourceRowHasOnePlace) {
  std::mt19937 random(99);
  for (int round = 0; round < 500; ++round) {
    const uint32_t ranks = 1 + random() % 8, local = 1 + random() % 9, rank = random() % ranks;
    const BlockCut cut{static_cast<uint32_t>(1 + random() % 20), static_cast<uint32_t>(random() % 8)};
    std::vector<SlotRange> ranges(uint64_t{ranks} * local);
    std::vector<uint32_t> expected_rows(local);
    for (uint32_t source = 0; source < ranks; ++source) {
      uint32_t first = random() % 5;
      for (uint32_t expert = 0; expert < local; ++expert) {
        const uint32_t rows = random() % 3 == 0 ? 0 : random() % 40;
        ranges[uint64_t{source} * local + expert] = {rows, first};
        first += rows;
        expected_rows[expert] += rows;
      }
    }
    std::vector<uint32_t> first_block(local + 1), num_rows(local), source_first(ranges.size());
    make_pool_plan(ranges.data(), rank, ranks, local, cut, {first_block.data(), num_rows.data(), source_first.data()});
    const PoolPlan plan{first_block.data(), num_rows.data(), source_first.data(), local, cut};
    EXPECT_EQ(num_rows, expected_rows);

    std::set<std::pair<uint32_t, uint32_t>> places;
    std::vector<uint32_t> rows_in_block(plan.num_blocks());
    for (uint32_t source = 0; source < ranks; ++source) {
      const uint64_t at = uint64_t{source} * local;
      SourceCursor cursor(plan, ranges.data() + at, source_first.data() + at);
      for (uint32_t expert = 0; expert < local; ++expert) {
        for (uint32_t i = 0; i < ranges[at + expert].num_rows; ++i) {
          ASSERT_FALSE(cursor.done());
          EXPECT_EQ(cursor.local_expert(), expert);
          EXPECT_EQ(cursor.list_index(), ranges[at + expert].first + i);
          ASSERT_LT(cursor.block(), plan.num_blocks());
          ASSERT_LT(cursor.row_in_block(), cut.room_m());
          EXPECT_TRUE(places.insert({cursor.block(), cursor.row_in_block()}).second);
          ++rows_in_block[cursor.block()];
          cursor.advance();
        }
      }
      EXPECT_TRUE(cursor.done());
    }
    for (uint32_t expert = 0; expert < local; ++expert)
      for (uint32_t block = first_block[expert]; block < first_block[expert + 1]; ++block)
        EXPECT_EQ(rows_in_block[block], plan.rows_of(expert, block));
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(Routing, ALastBlockTakesAFewFurtherRows) {
  constexpr BlockCut kCut{128, 16};
  for (const auto& [rows, blocks, last] : {std::array<uint32_t, 3>{0, 0, 0},
                                           {1, 1, 1},
                                           {128, 1, 128},
                                           {144, 1, 144},
                                           {145, 2, 17},
                                           {256, 2, 128},
                                           {272, 2, 144},
                                           {273, 3, 17}}) {
    EXPECT_EQ(kCut.num_blocks(rows), blocks) << rows;
    if (blocks == 0) continue;
    EXPECT_EQ(kCut.rows_of(blocks - 1, rows), last) << rows;
    EXPECT_EQ(kCut.block_of(rows - 1, blocks), blocks - 1) << rows;
    EXPECT_EQ(kCut.rows_of(0, rows), blocks > 1 ? 128u : rows) << rows;
  }
}

TEST(Routing, OwnersStartWithThemselves) {
  EXPECT_EQ(nth_source(3, 0, 4), 3u);
  EXPECT_EQ(nth_source(3, 1, 4), 0u);
  std::set<uint32_t> all;
  for (uint32_t n = 0; n < 4; ++n) all.insert(nth_source(2, n, 4));
  EXPECT_EQ(all.size(), 4u);
}

}  // namespace
}  // namespace megamoe::protocol
