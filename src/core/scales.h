// Where the scale of an element lies: activations have one per row and 128 columns, weights one per 128x128 block.
#pragma once

#include "core/integer.h"
#include "megamoe/shape.h"

namespace megamoe::core {

/// Groups of 128 columns (the last may be shorter) in a row of `columns`.
MEGAMOE_HD constexpr uint32_t num_scale_groups(uint32_t columns) { return ceil_div(columns, uint32_t{kScaleGroup}); }

/// Columns of group `group_idx`: 128, or what is left in the last one.
MEGAMOE_HD constexpr uint32_t scale_group_columns(uint32_t columns, uint32_t group_idx) {
  return min(uint32_t{kScaleGroup}, columns - group_idx * kScaleGroup);
}

/// Activation scales [rows][groups] in either major order; strides in elements.
struct ActivationScaleLayout {
  uint64_t row_stride = 0;
  uint64_t group_stride = 0;

  /// The groups of one row are neighbours.
  MEGAMOE_HD static constexpr ActivationScaleLayout row_major(uint32_t columns) {
    return {num_scale_groups(columns), 1};
  }
  /// The rows of one group are neighbours; `row_capacity` rows are reserved for each group.
  MEGAMOE_HD static constexpr ActivationScaleLayout group_major(uint64_t row_capacity) { return {1, row_capacity}; }

  MEGAMOE_HD constexpr uint64_t index(uint64_t row_idx, uint32_t group_idx) const {
    return row_idx * row_stride + group_idx * group_stride;
  }
};

/// The halves of w13.
enum class W13Half : uint32_t { kGate = 0, kUp = 1 };

/// w13 scales of all experts, dense: [experts][2][ceil(I/128)][H/128]. Gate and up rows have a grid each, because the
/// 2*I rows of both would share a block wherever I is not a multiple of 128.
struct W13ScaleLayout {
  uint32_t row_blocks = 0;  ///< ceil(I/128), of one half.
  uint32_t k_blocks = 0;    ///< H/128.

  MEGAMOE_HD static constexpr W13ScaleLayout of(uint32_t hidden, uint32_t intermediate) {
    return {num_scale_groups(intermediate), num_scale_groups(hidden)};
  }
  MEGAMOE_HD constexpr uint64_t elements_per_expert() const { return uint64_t{2} * row_blocks * k_blocks; }
  /// The scale of row `row_idx` (0 .. I-1 within its half) over columns k_block_idx*128 onwards.
  MEGAMOE_HD constexpr uint64_t index(uint64_t expert_idx, W13Half half, uint32_t row_idx, uint32_t k_block_idx) const {
    const uint64_t half_row_block = static_cast<uint64_t>(half) * row_blocks + row_idx / kScaleGroup;
    return expert_idx * elements_per_expert() + half_row_block * k_blocks + k_block_idx;
  }
};

/// w2 scales of all experts, dense: [experts][H/128][ceil(I/128)].
struct W2ScaleLayout {
  uint32_t row_blocks = 0;  ///< H/128.
  uint32_t k_blocks = 0;    ///< ceil(I/128).

  MEGAMOE_HD static constexpr W2ScaleLayout of(uint32_t hidden, uint32_t intermediate) {
    return {num_scale_groups(hidden), num_scale_groups(intermediate)};
  }
  MEGAMOE_HD constexpr uint64_t elements_per_expert() const { return uint64_t{row_blocks} * k_blocks; }
  MEGAMOE_HD constexpr uint64_t index(uint64_t expert_idx, uint32_t row_idx, uint32_t k_block_idx) const {
    return expert_idx * elements_per_expert() + uint64_t{row_idx / kScaleGroup} * k_blocks + k_block_idx;
  }
};

/// Whether a [ceil(2I/128)][H/128] grid over the concatenated gate and up rows is the same memory as the two grids.
MEGAMOE_HD constexpr bool concatenated_w13_scales_match(uint32_t intermediate) {
  return intermediate % kScaleGroup == 0;
}

}  // namespace megamoe::core
