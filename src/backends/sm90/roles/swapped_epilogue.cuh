// Epilogues of both GEMMs where operands are swapped: a warp has 16 weight rows of every chunk, for all tokens. What
// they leave in staging, or store, is byte for byte what the other kernels' epilogues make.
#pragma once

#include "backends/sm90/roles/swiglu.cuh"
#include "backends/sm90/swapped_tiling.h"

namespace megamoe::sm90 {

/// Final sums of a thread, of a tile of at most kN tokens; see SwappedTiling.
template <uint32_t kN>
struct SwappedSums {
  float value[SwappedTiling::kChunks][SwappedTiling::num_sums(kN)] = {};
};

/// A number for each of the tile's first kN tokens, in the lanes of a warp: token t's in lane t % 32.
template <uint32_t kN>
struct LaneTokens {
  float value[(kN + 31) / 32] = {};

  /// That of the thread's n-th token. By the whole warp.
  __device__ __forceinline__ float of(uint32_t lane, uint32_t n) const {
    return __shfl_sync(kFullWarp, value[n / 8], SwappedTiling::token(lane, n) % 32);
  }
  /// Sets value = make(token), for each token that there is.
  template <class Make>
  __device__ __forceinline__ void set(uint32_t lane, Make make) {
#pragma unroll
    for (uint32_t i = 0; i < (kN + 31) / 32; ++i)
      if (i * 32 + lane < kN) value[i] = make(i * 32 + lane);
  }
};

/// Where the tokens' rows of a second-GEMM tile go: token t's in lane t % 32.
template <uint32_t kN>
struct TokenTargets {
  uint32_t source[(kN + 31) / 32] = {};
  uint32_t token_slot[(kN + 31) / 32] = {};

  /// Ordered after the rows' arrival, like RowNotes::prefetch.
  template <class Spec>
  __device__ __forceinline__ void read(Context<Spec>& c, uint32_t block) {
    const protocol::RowMeta* meta = c.own(c.layout().row_meta) + uint64_t{block} * Spec::kSpec.room_m();
#pragma unroll
    for (uint32_t i = 0; i < (kN + 31) / 32; ++i) {
      if (i * 32 + c.lane() >= kN) continue;
      const uint4 raw = ptx::load_l2(reinterpret_cast<const uint4*>(meta + i * 32 + c.lane()));
      source[i] = raw.x & 0xffff;
      token_slot[i] = raw.y;
    }
  }
};

/// Router weights of the tokens of a first-GEMM tile. Ordered after the rows' arrival, like RowNotes::prefetch.
template <uint32_t kN, class Spec>
__device__ __forceinline__ LaneTokens<kN> read_topk_weights(Context<Spec>& c, uint32_t block) {
  const protocol::RowMeta* meta = c.own(c.layout().row_meta) + uint64_t{block} * Spec::kSpec.room_m();
  LaneTokens<kN> weights;
  weights.set(c.lane(), [&](uint32_t token) {
    return __uint_as_float(ptx::load_l2(reinterpret_cast<const uint4*>(meta + token)).z);
  });
  return weights;
}

/// From the largest magnitudes of each warp, in the buffer of this phase, to the tokens' scales in staging. Returns
/// what to multiply by.
template <uint32_t kN, class Spec>
__device__ __forceinline__ LaneTokens<kN> share_scales(Context<Spec>& c, uint32_t warp, uint32_t phase) {
  const uint32_t barrier = ptx::shared_address(&c.shared.amax_full);
  __syncwarp();
  c.chaos();
  if (c.lane() == 0) ptx::mbarrier_arrive(barrier);
  wait_barrier(c, barrier, phase, Role::kMath);
  LaneTokens<kN> inverse;
  inverse.set(c.lane(), [&](uint32_t token) {
    float amax = 0.0f;
#pragma unroll
    for (uint32_t n = 0; n < SharedStorage<Spec>::kRowSharers; ++n) amax = fmaxf(amax, c.shared.amax[phase][n][token]);
    const float scale = core::group_scale(amax);
    if (warp == 0) c.shared.staged_scales[token] = scale;
    return core::group_inverse(scale);
  });
  return inverse;
}

/// As stage_activations. By the whole warpgroup.
/// @param warp  in the warpgroup
template <uint32_t kN, class Spec>
__device__ __forceinline__ void stage_swapped_activations(Context<Spec>& c, uint32_t warp, SwappedSums<kN>& sums,
                                                          const LaneTokens<kN>& topk_weights, uint32_t amax_phase) {
  using Tiling = SwappedTiling;
  const bool up_is_first = c.args.weight_scales.up_is_first;
  const float clamp = c.args.clamp;
  const uint32_t lane = c.lane();
  // SwiGLU in place: the sums of the first half become the activations.
#pragma unroll
  for (uint32_t n = 0; n < Tiling::num_tokens(kN); ++n) {
    const float weight = topk_weights.of(lane, n);
    float amax = 0.0f;
#pragma unroll
    for (uint32_t chunk = 0; chunk < Tiling::kChunks; ++chunk) {
      float& first = sums.value[chunk][Tiling::sum(n, 0)];
      const float second = sums.value[chunk][Tiling::sum(n, 1)];
      first = swiglu_approx(up_is_first ? second : first, up_is_first ? first : second, clamp, weight);
      amax = fmaxf(amax, fabsf(first));  // fmaxf drops a NaN
    }
    // Eight lanes have columns of the same token.
#pragma unroll
    for (uint32_t mask = 4; mask < 32; mask *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, mask));
    if (lane < 4) c.shared.amax[amax_phase][warp][Tiling::token(lane, n)] = amax;
  }
  const LaneTokens<kN> inverses = share_scales<kN>(c, warp, amax_phase);
#pragma unroll
  for (uint32_t n = 0; n < Tiling::num_tokens(kN); ++n) {
    const float inverse = inverses.of(lane, n);
    const uint32_t token = Tiling::token(lane, n);
    const uint32_t slab = MathTiling<Spec>::staging_slab(c, n / 4);  // of 16 tokens
#pragma unroll
    for (uint32_t chunk = 0; chunk < Tiling::kChunks; chunk += 2) {
      const uint16_t codes = ptx::e4m3_pair(__fmul_rn(sums.value[chunk][Tiling::sum(n, 0)], inverse),
                                            __fmul_rn(sums.value[chunk + 1][Tiling::sum(n, 0)], inverse));
      ptx::store_shared_u8(slab + Tiling::code_offset(token, Tiling::act_column(chunk, warp, lane)), codes);
      ptx::store_shared_u8(slab + Tiling::code_offset(token, Tiling::act_column(chunk + 1, warp, lane)), codes >> 8);
    }
  }
}

/// As store_rows: rows of BF16, 16 bytes of a row by 4 lanes.
/// @param first_column  of the layer, of the first chunk
/// @param warp          in the warpgroup
/// @param num_tokens    0: nothing is written
template <uint32_t kN, uint32_t kChunks, class Spec>
__device__ __forceinline__ void store_swapped_rows(Context<Spec>& c, uint32_t first_column, uint32_t warp,
                                                   uint32_t num_tokens, const TokenTargets<kN>& targets,
                                                   const float (&sums)[kChunks][SwappedTiling::num_sums(kN)]) {
  using Tiling = SwappedTiling;
  const uint32_t hidden = c.view().spec.shape.hidden, lane = c.lane();
#pragma unroll
  for (uint32_t n = 0; n < kN / 8; ++n) {  // 8 tokens
    const uint32_t token = n * 8 + lane / 4;
    const uint32_t source = __shfl_sync(kFullWarp, targets.source[n / 4], token % 32);
    const uint32_t token_slot = __shfl_sync(kFullWarp, targets.token_slot[n / 4], token % 32);
    uint16_t* to = token < num_tokens ? combine_row(c, source, token_slot) + first_column : nullptr;
#pragma unroll
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const float* x = &sums[chunk][Tiling::sum(n * 2, half)];
        const uint32_t pair = ptx::transpose_matrix(ptx::bf16_pair(x[0], x[1]));
        const uint32_t column = Tiling::row_column(chunk, half, warp, lane);
        if (to != nullptr && first_column + column < hidden) *reinterpret_cast<uint32_t*>(to + column) = pair;
      }
    }
  }
}

}  // namespace megamoe::sm90
