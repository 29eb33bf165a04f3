// What a compiled kernel knows: tiles, stages, warp plan. Shapes, ranks and experts are run-time values.
#pragma once

#include "protocol/block_cut.h"
#include "protocol/warp_plan.h"

namespace megamoe::protocol {

/// One compiled instance. Every member is a compile-time fact of the kernel.
struct KernelSpec {
  const char* name = "";  ///< "m128", as `megamoe plan` prints it.
  WarpPlan plan;
  uint32_t block_m = 128;          ///< Rows of a tile, and of a pool block.
  uint32_t extra_m = 0;            ///< Further rows that an expert's last tile may hold, as the multiply's columns.
  uint32_t tile_n = 256;           ///< Columns of a tile of either GEMM; 128 gate and 128 up columns of the first.
  uint32_t tile_k = 128;           ///< Depth of a stage: one scale group.
  uint32_t num_stages = 3;         ///< Operand stages in shared memory.
  uint32_t num_tile_slots = 4;     ///< Tiles that the load role announces ahead.
  uint32_t num_pull_buffers = 4;   ///< Of each dispatch warp: pieces of rows on their way.
  uint32_t pull_buffer_bytes = 0;  ///< Of one of them.
  /// Whether the load role can read a rank's own rows where its tokens lie, row by row, without the pool.
  bool gathers_rows = false;
  /// Whether the multiply's 64 rows are weights, and the tile's rows its columns, of which a narrow tile needs few.
  bool swaps_operands = false;

  MEGAMOE_HD constexpr BlockCut cut() const { return {block_m, extra_m}; }
  MEGAMOE_HD constexpr uint32_t room_m() const { return cut().room_m(); }
  /// Math warpgroups side by side along the rows; the others lie along the columns.
  MEGAMOE_HD constexpr uint32_t warpgroups_m() const { return block_m / kWarpgroupRows; }
  MEGAMOE_HD constexpr uint32_t warpgroups_n() const { return plan.num_math_warpgroups() / warpgroups_m(); }
  /// Columns of one math warpgroup.
  MEGAMOE_HD constexpr uint32_t warpgroup_n() const { return tile_n / warpgroups_n(); }
  /// Columns of one chain of multiply instructions, and how many of them a warpgroup runs one after the other.
  MEGAMOE_HD constexpr uint32_t wave_n() const { return warpgroup_n() < kMaxWaveN ? warpgroup_n() : kMaxWaveN; }
  MEGAMOE_HD constexpr uint32_t num_waves() const { return warpgroup_n() / wave_n(); }
  /// Whether a tile of at most 64 rows is divided among two warpgroups along its columns, so that a nearly empty last
  /// block of an expert costs half of a full one.
  MEGAMOE_HD constexpr bool splits_half_tiles() const { return warpgroups_m() == 2 && warpgroups_n() == 1; }
  /// FP32 registers for the final sums and for one wave's partial sums.
  MEGAMOE_HD constexpr uint32_t accumulator_registers() const { return warpgroup_n() / 2 + wave_n() / 2; }

  MEGAMOE_HD constexpr bool valid() const {
    return plan.can_be_granted() && block_m % kWarpgroupRows == 0 && tile_k == 128 && tile_n == 256 &&
           plan.num_math_warpgroups() % warpgroups_m() == 0 && warpgroup_n() % wave_n() == 0 && num_stages >= 2 &&
           num_tile_slots >= 2 && num_pull_buffers >= 3 && num_pull_buffers <= 8 && pull_buffer_bytes % 128 == 0 &&
           pull_buffer_bytes > 0 && plan.num_warps(Role::kLoad) == 2 && plan.num_warps(Role::kStore) == 1 &&
           plan.num_warps(Role::kDispatch) >= 1 &&
           (extra_m == 0 || (extra_m == kExtraRows && splits_half_tiles() && !gathers_rows)) &&
           (!swaps_operands || (plan.num_math_warpgroups() == 1 && block_m == kWarpgroupRows));
  }

  static constexpr uint32_t kWarpgroupRows = 64;  ///< Of one multiply instruction.
  static constexpr uint32_t kExtraRows = 16;      ///< The only count of further rows that there is code for.
  static constexpr uint32_t kMaxWaveN = 128;      ///< Wider waves leave no room for separate final sums.
};

}  // namespace megamoe::protocol
