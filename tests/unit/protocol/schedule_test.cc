// The schedule is a pure function; these are its promises, on counts that were chosen to break them.
#include "protocol/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace megamoe::protocol {
namespace {

/// A plan over given row counts per expert, with storage.
struct PlannedRows {
  explicit PlannedRows(const std::vector<uint32_t>& rows, const BlockCut& cut)
      : first_block(rows.size() + 1), num_rows(rows.size()), source_first_row(rows.size()) {
    std::vector<SlotRange> ranges;
    ranges.reserve(rows.size());
    for (const uint32_t n : rows) ranges.push_back({n, 0});
    const auto local = static_cast<uint32_t>(rows.size());
    make_pool_plan(ranges.data(), 0, 1, local, cut, {first_block.data(), num_rows.data(), source_first_row.data()});
    plan = {first_block.data(), num_rows.data(), source_first_row.data(), local, cut};
  }

  std::vector<uint32_t> first_block, num_rows, source_first_row;
  PoolPlan plan;
};

struct Case {
  std::vector<uint32_t> rows;
  BlockCut cut;
  ScheduleSpec spec;
};

/// Walks the whole schedule and checks every promise; returns how many tiles there were.
uint64_t check_schedule(const Case& c) {
  const PlannedRows planned(c.rows, c.cut);
  const PoolPlan& plan = planned.plan;
  BlockSchedule schedule(c.spec, plan);
  std::set<std::tuple<int, uint32_t, uint32_t>> seen;
  std::map<uint32_t, uint32_t> l1_done, l2_done;
  Tile tile;
  uint64_t count = 0;
  for (; schedule.at(count, tile); ++count) {
    const bool is_l1 = tile.phase == Phase::kL1;
    EXPECT_TRUE(seen.insert({static_cast<int>(tile.phase), tile.block, tile.n}).second) << "tile twice";
    EXPECT_GE(tile.block, plan.expert_first_block[tile.local_expert]);
    EXPECT_LT(tile.block, plan.expert_first_block[tile.local_expert + 1]);
    EXPECT_GT(plan.rows_of(tile.local_expert, tile.block), 0u);
    EXPECT_LT(tile.n, is_l1 ? c.spec.num_l1_tiles : c.spec.num_l2_tiles);
    if (is_l1) {
      if (tile.block >= c.spec.act_ring_blocks) {
        EXPECT_EQ(l2_done[tile.block - c.spec.act_ring_blocks], c.spec.num_l2_tiles) << "activation ring exceeded";
      }
      ++l1_done[tile.block];
    } else {
      EXPECT_EQ(l1_done[tile.block], c.spec.num_l1_tiles) << "L2 before its producers";
      ++l2_done[tile.block];
    }
    if (::testing::Test::HasFailure()) return count;
  }
  EXPECT_EQ(count, BlockSchedule::num_tiles(c.spec, plan));
  EXPECT_EQ(seen.size(), count);
  EXPECT_FALSE(schedule.at(count + 1000, tile));
  return count;
}

TEST(Schedule, NoRowsNoTiles) {
  EXPECT_EQ(check_schedule({{0, 0, 0}, {8, 0}, {2, 3, 4, 1, 8}}), 0u);
  EXPECT_EQ(check_schedule({{}, {8, 0}, {2, 3, 4, 1, 8}}), 0u);
}

TEST(Schedule, OneRow) { EXPECT_EQ(check_schedule({{0, 1, 0}, {8, 0}, {2, 3, 4, 1, 4}}), 5u); }

TEST(Schedule, AllRowsOnOneExpertWithTheSmallestRing) {
  check_schedule({{0, 1000, 0}, {8, 0}, {3, 5, 1, 0, 1}});
  check_schedule({{0, 1000, 0}, {8, 0}, {3, 5, 4, 7, 4}});
  check_schedule({{0, 1000, 0}, {8, 0}, {3, 5, 4, 7, 5}});
}

TEST(Schedule, LagBeyondTheEnd) { check_schedule({{3, 9, 27}, {8, 0}, {2, 2, 2, 1000, 1000}}); }

TEST(Schedule, RealSkewedCounts) {
  const std::vector<uint32_t> rows = {4001, 1425, 0, 0, 0, 0, 0, 571, 503, 0, 26, 12, 1232, 0, 0, 224};
  for (const uint32_t unit : {1u, 3u, 8u})
    for (const uint32_t lag : {0u, 1u, 5u})
      for (const uint32_t ring : {unit, unit + 1, 4 * unit}) check_schedule({rows, {64, 8}, {2, 4, unit, lag, ring}});
}

TEST(Schedule, RandomCounts) {
  std::mt19937 random(1234);
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    Case c;
    const uint32_t experts = pick(1, 12);
    for (uint32_t e = 0; e < experts; ++e)
      c.rows.push_back(pick(0, 3) == 0 ? 0 : pick(0, 1) == 0 ? pick(1, 9) : pick(1, 200));
    c.cut = {pick(1, 33), pick(0, 12)};
    c.spec.num_l1_tiles = pick(1, 5);
    c.spec.num_l2_tiles = pick(1, 5);
    c.spec.unit_blocks = pick(1, 6);
    c.spec.lag_units = pick(0, 9);
    c.spec.act_ring_blocks = c.spec.unit_blocks + pick(0, 12);
    check_schedule(c);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(Schedule, SkippingTilesGivesTheSameTiles) {
  const PlannedRows planned({40, 0, 17, 3}, {8, 0});
  const ScheduleSpec spec{3, 2, 2, 1, 6};
  BlockSchedule every(spec, planned.plan);
  std::vector<Tile> all;
  Tile tile;
  while (every.at(all.size(), tile)) all.push_back(tile);
  for (const uint64_t step : {2u, 5u, 17u}) {
    BlockSchedule some(spec, planned.plan);
    for (uint64_t i = step - 1; i < all.size(); i += step) {
      ASSERT_TRUE(some.at(i, tile));
      EXPECT_EQ(tile.block, all[i].block);
      EXPECT_EQ(tile.n, all[i].n);
      EXPECT_EQ(tile.phase, all[i].phase);
    }
  }
}

TEST(Schedule, UnitsShareAWeightTile) {
  const PlannedRows planned({32}, {8, 0});  // four blocks, one unit
  BlockSchedule schedule({2, 2, 4, 0, 4}, planned.plan);
  Tile tile;
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(schedule.at(i, tile));
    EXPECT_EQ(tile.n, i / 4) << "column tile outside";
    EXPECT_EQ(tile.block, i % 4) << "block inside";
  }
}

}  // namespace
}  // namespace megamoe::protocol
