// How a tile is divided among the math warps, and what a warp knows about its rows.
#pragma once

#include "backends/sm90/machine.cuh"

namespace megamoe::sm90 {

template <class Spec>
struct MathTiling {
  static constexpr uint32_t kColumns = Spec::kSpec.warpgroup_n();  ///< Of a warpgroup.
  static constexpr uint32_t kWaveN = Spec::kSpec.wave_n();
  static constexpr uint32_t kWaves = Spec::kSpec.num_waves();
  static constexpr uint32_t kRegisters = kWaveN / 2;  ///< Sums of one wave in a thread.
  static constexpr uint32_t kWarpgroupsN = Spec::kSpec.warpgroups_n();
  /// Whether tiles of at most 64 rows are divided along the columns instead, a wave for each of two warpgroups.
  static constexpr bool kSplitsHalfTiles = Spec::kSpec.splits_half_tiles();

  /// First-GEMM codes in staging: 16 rows of kColumns / 2 bytes. Whole groups of 128 are swizzled, so that 8 rows lie
  /// in different banks, and start at a multiple of 1,024.
  static constexpr bool kSwizzledSlab = kColumns == 256;
  static __device__ __forceinline__ uint32_t activation_slab(Context<Spec>& c, uint32_t math_warp) {
    const uint32_t staging = ptx::shared_address(c.shared.staging[math_warp]);
    return kSwizzledSlab ? core::align_up(staging, 1024u) : staging;
  }

  /// Sum i of a wave: columns 8 * (i / 4) + 2 * (lane % 4) + i % 2, row lane / 4 + 8 * (i / 2 % 2) of the warp's 16.
  struct Sums {
    float value[kWaves][kRegisters];
  };
};

/// Where a math warp sits in a tile.
template <class Spec>
struct MathPlace {
  uint32_t warpgroup_m;
  uint32_t warpgroup_n;
  uint32_t warp;       ///< In its warpgroup.
  uint32_t math_warp;  ///< In the CTA.
  bool split;          ///< The tile is divided along its columns; see MathTiling::kSplitsHalfTiles.

  __device__ MathPlace(uint32_t index, bool is_split)
      : warpgroup_m(is_split ? 0 : index / 4 / MathTiling<Spec>::kWarpgroupsN),
        warpgroup_n(is_split ? index / 4 : index / 4 % MathTiling<Spec>::kWarpgroupsN),
        warp(index % 4),
        math_warp(index),
        split(is_split) {}
  /// Of the warp's 16 rows, in the tile.
  __device__ __forceinline__ uint32_t first_row() const { return warpgroup_m * 64 + warp * 16; }
  /// Whose part of staging the rows go to: in a split tile, that of the first warpgroup, so that a row lies in one
  /// piece.
  __device__ __forceinline__ uint32_t staging_warp() const { return split ? warp : math_warp; }
};

/// Router weights of a math warp's 16 rows.
struct RowWeights {
  /// Starts bringing them into shared memory. Ordered after the rows' arrival, which the load role acquired before it
  /// filled the stage.
  template <class Spec>
  __device__ static __forceinline__ void prefetch(Context<Spec>& c, const MathPlace<Spec>& place, uint32_t block) {
    const uint32_t lane = c.lane();
    if (lane >= 16) return;
    const protocol::RowMeta* meta =
        c.own(c.layout().row_meta) + uint64_t{block} * Spec::kSpec.room_m() + place.first_row() + lane;
    ptx::copy_4(ptx::shared_address(&c.shared.row_weights[place.math_warp][lane]), &meta->weight);
  }
  /// After prefetch and await, by the same warp.
  template <class Spec>
  __device__ static __forceinline__ float read(Context<Spec>& c, const MathPlace<Spec>& place, uint32_t row) {
    return c.shared.row_weights[place.math_warp][row];
  }
  __device__ static __forceinline__ void await() {
    ptx::wait_copies();
    __syncwarp();
  }
};

}  // namespace megamoe::sm90
