// Where rows go: the pool plan of one call (expert -> blocks, source -> rows), and the walk over one source's rows.
#pragma once

#include "protocol/workspace.h"

namespace megamoe::protocol {

/// The order in which owner `rank` places the sources inside each expert: itself first, then the next rank. So at any
/// time different owners pull from different sources, and a block holds rows of few sources: a slow source delays few
/// blocks.
MEGAMOE_HD constexpr uint32_t nth_source(uint32_t rank, uint32_t n, uint32_t num_ranks) {
  return (rank + n) % num_ranks;
}

/// Reads of the plan that the dispatch role wrote for this call. All arrays lie in the rank's own workspace.
struct PoolPlan {
  const uint32_t* expert_first_block;  // [local_experts + 1]
  const uint32_t* expert_num_rows;     // [local_experts]
  const uint32_t* source_first_row;    // [num_ranks][local_experts]
  uint32_t local_experts;
  BlockCut cut;

  MEGAMOE_HD uint32_t num_blocks() const { return expert_first_block[local_experts]; }
  MEGAMOE_HD uint32_t blocks_of(uint32_t local_expert) const {
    return expert_first_block[local_expert + 1] - expert_first_block[local_expert];
  }
  /// Rows of a pool block.
  MEGAMOE_HD uint32_t rows_of(uint32_t local_expert, uint32_t block) const {
    return cut.rows_of(block - expert_first_block[local_expert], expert_num_rows[local_expert]);
  }
};

/// Mutable side of the plan, for whoever computes it.
struct PoolPlanArrays {
  uint32_t* expert_first_block;
  uint32_t* expert_num_rows;
  uint32_t* source_first_row;
};

/// Computes the plan of owner `rank` from all sources' slot ranges.
/// @param slot_ranges [num_ranks sources][local_experts]
inline MEGAMOE_HD void make_pool_plan(const SlotRange* slot_ranges, uint32_t rank, uint32_t num_ranks,
                                      uint32_t local_experts, const BlockCut& cut, const PoolPlanArrays& out) {
  uint32_t block = 0;
  for (uint32_t expert = 0; expert < local_experts; ++expert) {
    uint32_t rows = 0;
    for (uint32_t n = 0; n < num_ranks; ++n) {
      const uint64_t cell = uint64_t{nth_source(rank, n, num_ranks)} * local_experts + expert;
      out.source_first_row[cell] = rows;
      rows += slot_ranges[cell].num_rows;
    }
    out.expert_first_block[expert] = block;
    out.expert_num_rows[expert] = rows;
    block += cut.num_blocks(rows);
  }
  out.expert_first_block[local_experts] = block;
}

/// The rows of one source in pool order: expert by expert. The puller's only state per source.
class SourceCursor {
 public:
  /// @param slot_ranges     this source's ranges, [local_experts]
  /// @param source_first_row this source's first rows, [local_experts]
  MEGAMOE_HD SourceCursor(const PoolPlan& plan, const SlotRange* slot_ranges, const uint32_t* source_first_row)
      : plan_(&plan), slot_ranges_(slot_ranges), source_first_row_(source_first_row) {
    skip_empty_experts();
  }

  MEGAMOE_HD bool done() const { return expert_ == plan_->local_experts; }
  MEGAMOE_HD uint32_t local_expert() const { return expert_; }
  /// Index into the source's slot list.
  MEGAMOE_HD uint32_t list_index() const { return slot_ranges_[expert_].first + index_; }
  MEGAMOE_HD uint32_t block() const { return plan_->expert_first_block[expert_] + block_in_expert(); }
  MEGAMOE_HD uint32_t row_in_block() const { return row_in_expert() - block_in_expert() * plan_->cut.block_m; }

  MEGAMOE_HD void advance(uint32_t num_rows = 1) {
    index_ += num_rows;
    while (expert_ < plan_->local_experts && index_ >= slot_ranges_[expert_].num_rows) {
      index_ -= slot_ranges_[expert_].num_rows;
      ++expert_;
    }
  }

 private:
  MEGAMOE_HD uint32_t row_in_expert() const { return source_first_row_[expert_] + index_; }
  MEGAMOE_HD uint32_t block_in_expert() const {
    return plan_->cut.block_of(row_in_expert(), plan_->blocks_of(expert_));
  }
  MEGAMOE_HD void skip_empty_experts() { advance(0); }

  const PoolPlan* plan_;
  const SlotRange* slot_ranges_;
  const uint32_t* source_first_row_;
  uint32_t expert_ = 0;
  uint32_t index_ = 0;
};

}  // namespace megamoe::protocol
