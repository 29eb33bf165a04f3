// The order of all tiles of one rank: a pure function of the block counts, the same for every role and every machine.
#pragma once

#include "protocol/routing.h"

namespace megamoe::protocol {

enum class Phase : uint8_t { kL1, kL2 };

struct Tile {
  Phase phase;
  uint32_t local_expert;
  uint32_t block;         ///< Pool block, counted over all experts.
  uint32_t n;             ///< Column tile.
  uint32_t num_rows = 0;  ///< Of the block; see BlockCut.
  uint32_t sharers = 0;   ///< Blocks of the unit: tiles that use the same weights.
};

struct ScheduleSpec {
  uint32_t num_l1_tiles = 0;     ///< Column tiles of the first GEMM per block: ceil(I / 128).
  uint32_t num_l2_tiles = 0;     ///< Column tiles of the second GEMM per block.
  uint32_t unit_blocks = 1;      ///< Blocks of one expert that share a pass over its weights.
  uint32_t lag_units = 0;        ///< Units by which the second GEMM stays behind the first.
  uint32_t act_ring_blocks = 1;  ///< L1 never runs further ahead than this. At least unit_blocks.

  bool operator==(const ScheduleSpec&) const = default;
};

/// Rows of each local expert, as a walk along the schedule asks for them: never backwards.
class PlanRows {
 public:
  MEGAMOE_HD explicit PlanRows(const PoolPlan& plan) : num_rows_(plan.expert_num_rows) {}
  MEGAMOE_HD uint32_t operator()(uint32_t local_expert) { return num_rows_[local_expert]; }

 private:
  const uint32_t* num_rows_;
};

/// What the cursors need to know of a pool plan.
struct WalkLimits {
  uint32_t local_experts;
  BlockCut cut;
  uint32_t unit_blocks;
};

/// Up to unit_blocks consecutive blocks of one expert.
/// @tparam Rows  gives the rows of an expert
template <class Rows>
class UnitCursor {
 public:
  MEGAMOE_HD UnitCursor(const WalkLimits& limits, Rows rows) : limits_(limits), rows_(rows) { settle(); }

  MEGAMOE_HD bool done() const { return expert_ == limits_.local_experts; }
  MEGAMOE_HD uint32_t local_expert() const { return expert_; }
  MEGAMOE_HD uint32_t first_block() const { return expert_first_block_ + offset_; }
  MEGAMOE_HD uint32_t num_blocks() const { return core::min(limits_.unit_blocks, expert_blocks() - offset_); }
  MEGAMOE_HD uint32_t end_block() const { return first_block() + num_blocks(); }
  MEGAMOE_HD uint32_t index() const { return index_; }
  MEGAMOE_HD uint32_t rows_of(uint32_t block) const {
    return limits_.cut.rows_of(block - expert_first_block_, expert_num_rows_);
  }

  MEGAMOE_HD void advance() {
    offset_ += num_blocks();
    ++index_;
    if (offset_ < expert_blocks()) return;
    expert_first_block_ += expert_blocks();
    offset_ = 0;
    ++expert_;
    settle();
  }

 private:
  MEGAMOE_HD uint32_t expert_blocks() const { return limits_.cut.num_blocks(expert_num_rows_); }
  /// Skips experts without rows.
  MEGAMOE_HD void settle() {
    for (; expert_ < limits_.local_experts; ++expert_) {
      expert_num_rows_ = rows_(expert_);
      if (expert_num_rows_ != 0) return;
    }
  }

  WalkLimits limits_;
  Rows rows_;
  uint32_t expert_ = 0;
  uint32_t expert_num_rows_ = 0;
  uint32_t expert_first_block_ = 0;
  uint32_t offset_ = 0;
  uint32_t index_ = 0;
};

/// Walks the schedule by tile number. Guarantees, for any counts: every (phase, block, n) exactly once; every L2 tile
/// after all L1 tiles of its block; L1 of block b only after all L2 tiles of block b - act_ring_blocks. So whoever
/// takes tiles in this order and waits only on earlier ones cannot deadlock.
template <class Rows>
class ScheduleWalk {
 public:
  MEGAMOE_HD ScheduleWalk(const ScheduleSpec& spec, uint32_t local_experts, const BlockCut& cut, Rows rows)
      : spec_(spec),
        l1_({local_experts, cut, spec.unit_blocks}, rows),
        l2_({local_experts, cut, spec.unit_blocks}, rows) {
    open_segment();
  }

  /// The tile with number `tile_idx`. Calls must not go backwards.
  /// @return false past the last tile
  MEGAMOE_HD bool at(uint64_t tile_idx, Tile& tile) {
    while (open_ && tile_idx >= segment_end_) close_segment();
    if (!open_) return false;
    const UnitCursor<Rows> unit = phase_ == Phase::kL1 ? l1_ : l2_;
    const uint32_t i = static_cast<uint32_t>(tile_idx - segment_begin_);
    // Column tile outside, block inside: all blocks of the unit use a weight tile while it is in the cache.
    const uint32_t block = unit.first_block() + i % unit.num_blocks();
    tile = {phase_, unit.local_expert(), block, i / unit.num_blocks(), unit.rows_of(block), unit.num_blocks()};
    return true;
  }

 private:
  /// Opens the next run of tiles: one phase of one unit.
  MEGAMOE_HD void open_segment() {
    const bool l1_fits = !l1_.done() && l1_.index() <= l2_.index() + spec_.lag_units &&
                         (l2_.done() || l1_.end_block() - l2_.first_block() <= spec_.act_ring_blocks);
    open_ = !l2_.done();
    if (!open_) return;
    phase_ = l1_fits ? Phase::kL1 : Phase::kL2;
    const uint32_t num_blocks = l1_fits ? l1_.num_blocks() : l2_.num_blocks();
    segment_end_ = segment_begin_ + uint64_t{num_blocks} * (l1_fits ? spec_.num_l1_tiles : spec_.num_l2_tiles);
  }

  MEGAMOE_HD void close_segment() {
    // Written out: a reference to either cursor would force both into memory on a GPU.
    if (phase_ == Phase::kL1) {
      l1_.advance();
    } else {
      l2_.advance();
    }
    segment_begin_ = segment_end_;
    open_segment();
  }

  ScheduleSpec spec_;
  UnitCursor<Rows> l1_;
  UnitCursor<Rows> l2_;
  Phase phase_ = Phase::kL1;
  bool open_ = false;
  uint64_t segment_begin_ = 0;
  uint64_t segment_end_ = 0;
};

/// The walk over a pool plan in memory.
class BlockSchedule : public ScheduleWalk<PlanRows> {
 public:
  MEGAMOE_HD BlockSchedule(const ScheduleSpec& spec, const PoolPlan& plan)
      : ScheduleWalk(spec, plan.local_experts, plan.cut, PlanRows(plan)) {}

  static MEGAMOE_HD uint64_t num_tiles(const ScheduleSpec& spec, const PoolPlan& plan) {
    return uint64_t{plan.num_blocks()} * (spec.num_l1_tiles + spec.num_l2_tiles);
  }
};

}  // namespace megamoe::protocol
