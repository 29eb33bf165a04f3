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
  /// in different banks.
  static constexpr bool kSwizzledSlab = kColumns == 256;
  static __device__ __forceinline__ uint32_t staging_slab(Context<Spec>& c, uint32_t math_warp) {
    return ptx::shared_address(c.shared.staging[math_warp]);
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

/// Where a row of the second GEMM goes: in the combine buffer of the rank that it came from.
template <class Spec>
__device__ __forceinline__ uint16_t* combine_row(Context<Spec>& c, uint32_t source, uint32_t token_slot) {
  const protocol::WorkspaceSpec& spec = c.view().spec;
  const uint32_t token = token_slot / spec.shape.top_k, slot = token_slot % spec.shape.top_k;
  return c.peer(c.layout().combine_rows, source) + (uint64_t{slot} * spec.max_tokens + token) * spec.shape.hidden;
}

/// What a math warp needs to know of its 16 rows: of a first-GEMM tile the router weights, of a second-GEMM tile where
/// the rows go.
struct RowNotes {
  /// Starts bringing them into shared memory. Ordered after the rows' arrival, which the load role acquired before it
  /// filled the stage.
  template <class Spec>
  __device__ static __forceinline__ void prefetch(Context<Spec>& c, const MathPlace<Spec>& place,
                                                  const TileNote& tile) {
    const uint32_t lane = c.lane();
    if (lane >= 16) return;
    const protocol::RowMeta* meta =
        c.own(c.layout().row_meta) + uint64_t{tile.block} * Spec::kSpec.room_m() + place.first_row() + lane;
    const uint32_t to = ptx::shared_address(&c.shared.row_notes[place.math_warp][lane]);
    if (tile.kind == kNoteL1) {
      ptx::copy_4(to, &meta->weight);
    } else {
      ptx::copy_8(to, meta);
    }
  }
  /// After prefetch and await, by the same warp.
  template <class Spec>
  __device__ static __forceinline__ float weight(Context<Spec>& c, const MathPlace<Spec>& place, uint32_t row) {
    return __uint_as_float(c.shared.row_notes[place.math_warp][row].x);
  }
  template <class Spec>
  __device__ static __forceinline__ uint16_t* target(Context<Spec>& c, const MathPlace<Spec>& place, uint32_t row) {
    const uint2 note = c.shared.row_notes[place.math_warp][row];
    return combine_row(c, note.x & 0xffff, note.y);
  }
  __device__ static __forceinline__ void await() {
    ptx::wait_copies();
    __syncwarp();
  }
};

}  // namespace megamoe::sm90
