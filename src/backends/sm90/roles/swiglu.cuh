// Epilogue of the first GEMM: SwiGLU with the router weight, requantisation per 128 columns, codes into staging.
#pragma once

#include "backends/sm90/math_tiling.cuh"
#include "core/activation.h"
#include "core/quantize.h"

namespace megamoe::sm90 {

/// 2^x; 2 ulp.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x; 1 ulp.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// The smaller (larger) one; NaN passes through, as in core::clamp_gate and core::clamp_up.
__device__ __forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// core::swiglu with the hardware's exponential and reciprocal (a few ulp, far below one E4M3 step; the same bits in
/// every tile, plan and run).
__device__ __forceinline__ float swiglu_approx(float gate, float up, float clamp, float weight) {
  const float g = min_nan(gate, clamp);
  const float u = max_nan(min_nan(up, clamp), -clamp);
  constexpr float kMinusLog2E = -1.4426950408889634f;
  const float silu = __fmul_rn(g, reciprocal_approx(__fadd_rn(1.0f, exp2_approx(__fmul_rn(g, kMinusLog2E)))));
  return __fmul_rn(__fmul_rn(silu, u), weight);
}

/// The largest magnitude of a row over all warpgroups that share it. Two buffers: a warp may already be at the next
/// tile while another still reads this one's.
template <class Spec>
__device__ __forceinline__ void exchange_amax(Context<Spec>& c, const MathPlace<Spec>& place, float (&amax)[2],
                                              uint32_t phase) {
  auto& all = c.shared.amax[phase];
  const uint32_t lane = c.lane(), row = place.first_row() + lane / 4,
                 barrier = ptx::shared_address(&c.shared.amax_full);
  if (lane % 4 == 0) {
    all[place.warpgroup_n][row] = amax[0];
    all[place.warpgroup_n][row + 8] = amax[1];
  }
  __syncwarp();
  c.chaos();
  if (lane == 0) ptx::mbarrier_arrive(barrier);
  wait_barrier(c, barrier, phase, Role::kMath);
#pragma unroll
  for (uint32_t n = 0; n < SharedStorage<Spec>::kRowSharers; ++n) {
    amax[0] = fmaxf(amax[0], all[n][row]);
    amax[1] = fmaxf(amax[1], all[n][row + 8]);
  }
}

/// @tparam kWaves        that the warpgroup has multiplied
/// @tparam kSharesRows   with other warpgroups
template <uint32_t kWaves, bool kSharesRows, class Spec>
__device__ __forceinline__ void stage_activations(Context<Spec>& c, const MathPlace<Spec>& place,
                                                  typename MathTiling<Spec>::Sums& sums, uint32_t amax_phase) {
  using Tiling = MathTiling<Spec>;
  constexpr uint32_t kPairs = Tiling::kWaveN / 16;        // gate/up pairs of 8 columns in a wave
  constexpr uint32_t kOutColumns = Tiling::kColumns / 2;  // of a row in staging
  const bool up_is_first = c.args.weight_scales.up_is_first;
  const float clamp = c.args.clamp;
  const uint32_t lane = c.lane();
  RowNotes::await();
  const float weight[2] = {RowNotes::weight(c, place, lane / 4), RowNotes::weight(c, place, lane / 4 + 8)};
  // SwiGLU in place: the sums of even groups become the activations.
  float amax[2] = {0.0f, 0.0f};
#pragma unroll
  for (uint32_t wave = 0; wave < kWaves; ++wave) {
#pragma unroll
    for (uint32_t i = 0; i < kPairs * 4; ++i) {
      float& even = sums.value[wave][i / 4 * 8 + i % 4];
      const float odd = sums.value[wave][i / 4 * 8 + 4 + i % 4];
      even = swiglu_approx(up_is_first ? odd : even, up_is_first ? even : odd, clamp, weight[i / 2 % 2]);
      amax[i / 2 % 2] = fmaxf(amax[i / 2 % 2], fabsf(even));  // fmaxf drops a NaN
    }
  }
  // Four lanes share a row.
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    amax[h] = fmaxf(amax[h], __shfl_xor_sync(kFullWarp, amax[h], 1));
    amax[h] = fmaxf(amax[h], __shfl_xor_sync(kFullWarp, amax[h], 2));
  }
  if constexpr (kSharesRows) exchange_amax(c, place, amax, amax_phase);
  const float scale[2] = {core::group_scale(amax[0]), core::group_scale(amax[1])};
  const float inverse[2] = {core::group_inverse(scale[0]), core::group_inverse(scale[1])};

  if (lane % 4 == 0 && place.warpgroup_n == 0) {
    float* to = &c.shared.staged_scales[place.first_row() + lane / 4];
    to[0] = scale[0];
    to[8] = scale[1];
  }
  // 16 rows of kOutColumns bytes. Whole rows of 128 are swizzled, so that 8 rows lie in different banks.
  constexpr bool kSwizzled = Tiling::kSwizzledSlab;
  const uint32_t slab = Tiling::staging_slab(c, place.staging_warp());
  const uint32_t first_column = place.split ? place.warpgroup_n * (Tiling::kWaveN / 2) : 0;
#pragma unroll
  for (uint32_t wave = 0; wave < kWaves; ++wave) {
#pragma unroll
    for (uint32_t pair = 0; pair < kPairs; ++pair) {
      const uint32_t column = first_column + wave * (Tiling::kWaveN / 2) + pair * 8 + lane % 4 * 2;
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        const uint32_t slab_row = lane / 4 + h * 8;
        const uint32_t chunk = kSwizzled ? (column / 16 ^ slab_row % 8) : column / 16;
        const float* x = &sums.value[wave][pair * 8 + h * 2];
        ptx::store_shared_u16(slab + slab_row * kOutColumns + chunk * 16 + column % 16,
                              ptx::e4m3_pair(__fmul_rn(x[0], inverse[h]), __fmul_rn(x[1], inverse[h])));
      }
    }
  }
}

}  // namespace megamoe::sm90
