// How an expert's rows are cut into blocks.
#pragma once

#include "core/integer.h"

namespace megamoe::protocol {

/// Blocks of block_m rows; an expert's last one may be short, or hold up to extra_m more instead of leaving them to a
/// nearly empty block, which would read all of the expert's weights again.
struct BlockCut {
  uint32_t block_m = 1;
  uint32_t extra_m = 0;

  /// Rows that a block has room for.
  MEGAMOE_HD constexpr uint32_t room_m() const { return block_m + extra_m; }
  /// Of an expert with so many rows.
  MEGAMOE_HD constexpr uint32_t num_blocks(uint32_t rows) const {
    if (rows <= room_m()) return rows != 0 ? 1 : 0;
    return core::ceil_div(rows - extra_m, block_m);
  }
  /// The block, counted in the expert, that holds one of its rows.
  MEGAMOE_HD constexpr uint32_t block_of(uint32_t row, uint32_t num_blocks) const {
    return core::min(row / block_m, num_blocks - 1);
  }
  /// Rows of a block, counted in an expert with so many rows.
  MEGAMOE_HD constexpr uint32_t rows_of(uint32_t block, uint32_t rows) const {
    const uint32_t left = rows - block * block_m;
    return left <= room_m() ? left : block_m;
  }

  bool operator==(const BlockCut&) const = default;
};

}  // namespace megamoe::protocol
