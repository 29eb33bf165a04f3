// Epilogue of the second GEMM: rows rounded to BF16, into staging.
#pragma once

#include "backends/sm90/math_tiling.cuh"

namespace megamoe::sm90 {

/// @tparam kWaves  that the warpgroup has multiplied
template <uint32_t kWaves, class Spec>
__device__ __forceinline__ void stage_rows(Context<Spec>& c, const MathPlace<Spec>& place,
                                           const typename MathTiling<Spec>::Sums& sums) {
  using Tiling = MathTiling<Spec>;
  const uint32_t lane = c.lane();
  const uint32_t to = ptx::shared_address(c.shared.staging[place.staging_warp()]) +
                      lane % 16 * SharedStorage<Spec>::kStorePitch + lane / 16 * 16 +
                      (place.split ? place.warpgroup_n * Tiling::kWaveN * 2 : 0);
#pragma unroll
  for (uint32_t wave = 0; wave < kWaves; ++wave) {
#pragma unroll
    for (uint32_t i = 0; i < Tiling::kRegisters; i += 8) {  // 16 columns
      const float* x = &sums.value[wave][i];
      ptx::store_matrix_x4(to + (wave * Tiling::kWaveN + i * 2) * 2, ptx::bf16_pair(x[0], x[1]),
                           ptx::bf16_pair(x[2], x[3]), ptx::bf16_pair(x[4], x[5]), ptx::bf16_pair(x[6], x[7]));
    }
  }
}

}  // namespace megamoe::sm90
