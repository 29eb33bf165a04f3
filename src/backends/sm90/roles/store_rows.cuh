// Epilogue of the second GEMM: rows rounded to BF16, straight to the combine buffers of the ranks that they came from.
#pragma once

#include "backends/sm90/math_tiling.cuh"
#include "core/swizzle.h"

namespace megamoe::sm90 {

/// A warp's 16 rows, 64 columns at a time: through its part of staging, from which 8 lanes take 128 bytes of a row.
/// Ordered before the tile's end by release_staging, then finish_tile, which releases for all math warps.
/// @tparam kWaves    that the warpgroup has multiplied
/// @param num_rows  of the tile; 0: nothing is written
template <uint32_t kWaves, class Spec>
__device__ __forceinline__ void store_rows(Context<Spec>& c, const MathPlace<Spec>& place, const TileNote& tile,
                                           uint32_t num_rows, const typename MathTiling<Spec>::Sums& sums) {
  using Tiling = MathTiling<Spec>;
  constexpr uint32_t kPassColumns = 64, kRowsAtOnce = 4, kSteps = SharedStorage<Spec>::kStoreRows / kRowsAtOnce;
  constexpr uint32_t kColumns = kWaves * Tiling::kWaveN;
  const uint32_t lane = c.lane(), hidden = c.view().spec.shape.hidden;
  const uint32_t slab = Tiling::staging_slab(c, place.math_warp);
  const uint32_t first_column = tile.n * Spec::kSpec.tile_n + place.warpgroup_n * kColumns;
  const auto swizzled = [](uint32_t row, uint32_t byte) {
    return static_cast<uint32_t>(core::swizzle_128b(row * core::kSwizzleRowBytes + byte));
  };
  RowNotes::await();
  uint16_t* to[kSteps];
#pragma unroll
  for (uint32_t i = 0; i < kSteps; ++i) {
    const uint32_t row = i * kRowsAtOnce + lane / 8;
    to[i] =
        place.first_row() + row < num_rows ? RowNotes::target(c, place, row) + first_column + lane % 8 * 8 : nullptr;
  }
#pragma unroll
  for (uint32_t column = 0; column < kColumns; column += kPassColumns) {
    if (first_column + column >= hidden) break;
#pragma unroll
    for (uint32_t i = 0; i < kPassColumns; i += 16) {
      const float* x = &sums.value[column / Tiling::kWaveN][(column % Tiling::kWaveN + i) / 2];
      ptx::store_matrix_x4(slab + swizzled(lane % 16, (i + lane / 16 * 8) * 2), ptx::bf16_pair(x[0], x[1]),
                           ptx::bf16_pair(x[2], x[3]), ptx::bf16_pair(x[4], x[5]), ptx::bf16_pair(x[6], x[7]));
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
      const uint32_t row = i * kRowsAtOnce + lane / 8;
      const uint4 piece = ptx::load_shared_16(slab + swizzled(row, lane % 8 * 16));
      if (to[i] != nullptr) *reinterpret_cast<uint4*>(to[i] + column) = piece;
    }
    __syncwarp();
  }
}

}  // namespace megamoe::sm90
