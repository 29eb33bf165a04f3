// The order of all tiles of one rank: a pure function of the block counts, the same for every role and every machine.
#pragma once

#include "protocol/routing.h"

namespace megamoe::protocol {

enum class Phase : uint8_t { kL1, kL2 };

struct Tile {
  Phase phase;
  uint32_t local_expert;
  uint32_t block;  ///< Pool block, counted over all experts.
  uint32_t n;      ///< Column tile.
};

struct ScheduleSpec {
  uint32_t num_l1_tiles = 0;     ///< Column tiles of the first GEMM per block: ceil(I / 128).
  uint32_t num_l2_tiles = 0;     ///< Column tiles of the second GEMM per block.
  uint32_t unit_blocks = 1;      ///< Blocks of one expert that share a pass over its weights.
  uint32_t lag_units = 0;        ///< Units by which the second GEMM stays behind the first.
  uint32_t act_ring_blocks = 1;  ///< L1 never runs further ahead than this. At least unit_blocks.

  bool operator==(const ScheduleSpec&) const = default;
};

/// Up to unit_blocks consecutive blocks of one expert.
class UnitCursor {
 public:
  MEGAMOE_HD UnitCursor(const PoolPlan& plan, uint32_t unit_blocks) : plan_(&plan), unit_blocks_(unit_blocks) {
    settle();
  }

  MEGAMOE_HD bool done() const { return expert_ == plan_->local_experts; }
  MEGAMOE_HD uint32_t local_expert() const { return expert_; }
  MEGAMOE_HD uint32_t first_block() const { return plan_->expert_first_block[expert_] + offset_; }
  MEGAMOE_HD uint32_t num_blocks() const { return core::min(unit_blocks_, plan_->blocks_of(expert_) - offset_); }
  MEGAMOE_HD uint32_t end_block() const { return first_block() + num_blocks(); }
  MEGAMOE_HD uint32_t index() const { return index_; }

  MEGAMOE_HD void advance() {
    offset_ += num_blocks();
    ++index_;
    settle();
  }

 private:
  MEGAMOE_HD void settle() {
    while (expert_ < plan_->local_experts && offset_ >= plan_->blocks_of(expert_)) {
      offset_ = 0;
      ++expert_;
    }
  }

  const PoolPlan* plan_;
  uint32_t unit_blocks_;
  uint32_t expert_ = 0;
  uint32_t offset_ = 0;
  uint32_t index_ = 0;
};

/// Walks the schedule by tile number. Guarantees, for any counts: every (phase, block, n) exactly once; every L2 tile
/// after all L1 tiles of its block; L1 of block b only after all L2 tiles of block b - act_ring_blocks. So whoever
/// takes tiles in this order and waits only on earlier ones cannot deadlock.
class BlockSchedule {
 public:
  MEGAMOE_HD BlockSchedule(const ScheduleSpec& spec, const PoolPlan& plan)
      : spec_(spec), l1_(plan, spec.unit_blocks), l2_(plan, spec.unit_blocks) {
    open_segment();
  }

  static MEGAMOE_HD uint64_t num_tiles(const ScheduleSpec& spec, const PoolPlan& plan) {
    return uint64_t{plan.num_blocks()} * (spec.num_l1_tiles + spec.num_l2_tiles);
  }

  /// The tile with number `tile_idx`. Calls must not go backwards.
  /// @return false past the last tile
  MEGAMOE_HD bool at(uint64_t tile_idx, Tile& tile) {
    while (open_ && tile_idx >= segment_end_) close_segment();
    if (!open_) return false;
    const UnitCursor unit = phase_ == Phase::kL1 ? l1_ : l2_;
    const uint32_t i = static_cast<uint32_t>(tile_idx - segment_begin_);
    // Column tile outside, block inside: all blocks of the unit use a weight tile while it is in the cache.
    tile = {phase_, unit.local_expert(), unit.first_block() + i % unit.num_blocks(), i / unit.num_blocks()};
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
  UnitCursor l1_;
  UnitCursor l2_;
  Phase phase_ = Phase::kL1;
  bool open_ = false;
  uint64_t segment_begin_ = 0;
  uint64_t segment_end_ = 0;
};

}  // namespace megamoe::protocol
