// The further rows of an expert's last tile: up to 16, multiplied with swapped operands while the tile's weights lie in
// shared memory. Each of the two math warpgroups takes half of the weight rows. Every sum goes through the same
// operations in the same order as in roles/math, so its bits are the same.
#pragma once

#include "backends/sm90/ptx/wgmma.cuh"
#include "backends/sm90/roles/swapped_epilogue.cuh"
#include "backends/sm90/tile_form.h"

namespace megamoe::sm90 {

template <class Spec>
class ExtraRows {
  using Shared = SharedStorage<Spec>;
  using Tiling = SwappedTiling;
  static constexpr uint32_t kRows = protocol::KernelSpec::kExtraRows;
  static constexpr uint32_t kWarpgroups = 2, kChunks = Tiling::kChunks / kWarpgroups;  ///< Of one warpgroup.
  static constexpr uint32_t kTokens = Tiling::num_tokens(kRows);

 public:
  using Part = float[kChunks][Tiling::num_sums(kRows)];
  struct Scales {
    float token[kTokens];
  };

  /// @param math_warp  of all in the CTA
  __device__ __forceinline__ static uint32_t first_chunk(uint32_t math_warp) { return math_warp / 4 * kChunks; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& chunk : sum_)
#pragma unroll
      for (float& sum : chunk) sum = 0.0f;
  }

  /// What a lane knows of the row that it stands for; lane i below 16 for row i. Starts reading it. Ordered after the
  /// rows' arrival, like RowWeights::prefetch.
  __device__ __forceinline__ void find(Context<Spec>& c, const TileNote& tile) {
    const uint32_t row = TileForm::of<Spec>(tile.num_rows).main_rows + c.lane();
    if (c.lane() >= kRows || row >= tile.num_rows) return;
    const protocol::RowMeta* meta = c.own(c.layout().row_meta) + uint64_t{tile.block} * Spec::kSpec.room_m() + row;
    const uint4 raw = ptx::load_l2(reinterpret_cast<const uint4*>(meta));
    source_ = raw.x & 0xffff;
    token_slot_ = raw.y;
    weight_ = __uint_as_float(raw.z);
  }

  /// Issues the multiplies over a stage's 128 columns.
  /// @param weights, tokens  operands of the warpgroup's first chunk, and of the further rows
  __device__ __forceinline__ static void issue(uint32_t weights, uint32_t tokens, Part& part) {
#pragma unroll
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const uint32_t a = weights + chunk * Tiling::kChunkRows * 8;
      ptx::Wgmma<kRows>::multiply(part[chunk], ptx::operand(a), ptx::operand(tokens));
#pragma unroll
      for (uint32_t k = 1; k < 4; ++k)
        ptx::Wgmma<kRows>::multiply_add(part[chunk], ptx::operand(a + k * 2), ptx::operand(tokens + k * 2));
    }
  }

  /// @param scales  shared address of the scale of the first further row
  __device__ __forceinline__ static Scales read_scales(uint32_t scales, uint32_t lane) {
    Scales read;
#pragma unroll
    for (uint32_t n = 0; n < kTokens; ++n) read.token[n] = ptx::load_shared(scales + Tiling::token(lane, n) * 4);
    return read;
  }

  /// sum = fma(part, token scale * weight scale, sum), the products rounded once; see SwappedMathWarp::promote.
  /// @param even, odd  scales of the first and second 8 of each 16 weight rows
  __device__ __forceinline__ void promote(Part& part, const Scales& scales, float even, float odd) {
#pragma unroll
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (uint32_t n = 0; n < kTokens; ++n) {
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
          const uint32_t i = Tiling::sum(n, half);
          asm volatile("" : "+f"(part[chunk][i])::"memory");  // no read moves above the wait
          sum_[chunk][i] =
              __fmaf_rn(part[chunk][i], __fmul_rn(scales.token[n], half == 0 ? even : odd), sum_[chunk][i]);
        }
      }
    }
  }

  /// SwiGLU with the router weight, requantised per 128 columns, codes and scales into staging. By all math warps,
  /// before they stage the tile's other rows.
  __device__ __forceinline__ void stage_activations(Context<Spec>& c, uint32_t math_warp, const TileNote& tile,
                                                    uint32_t amax_phase) {
    const bool up_is_first = c.args.weight_scales.up_is_first;
    const float clamp = c.args.clamp;
    const uint32_t lane = c.lane(), slab = MathTiling<Spec>::activation_slab(c, 0);
    // [phase][math warps][kRows]: two buffers, as in exchange_amax.
    const uint32_t amaxes = slab + Shared::kExtraAmax + amax_phase * Shared::kMathWarps * kRows * 4;
    // In place: the sums of the first half become the activations.
#pragma unroll
    for (uint32_t n = 0; n < kTokens; ++n) {
      const uint32_t token = Tiling::token(lane, n);
      const float weight = __shfl_sync(kFullWarp, weight_, token);
      float amax = 0.0f;
#pragma unroll
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        float& first = sum_[chunk][Tiling::sum(n, 0)];
        const float second = sum_[chunk][Tiling::sum(n, 1)];
        first = swiglu_approx(up_is_first ? second : first, up_is_first ? first : second, clamp, weight);
        amax = fmaxf(amax, fabsf(first));  // fmaxf drops a NaN
      }
      // Eight lanes have columns of the same token.
#pragma unroll
      for (uint32_t mask = 4; mask < 32; mask *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, mask));
      if (lane < 4) ptx::store_shared(amaxes + (math_warp * kRows + token) * 4, amax);
    }
    const float inverse = share_scales(c, math_warp, amaxes, TileForm::of<Spec>(tile.num_rows).main_rows,  //
                                       amax_phase);
    const uint32_t codes_at = slab + Shared::kExtraSlab;
#pragma unroll
    for (uint32_t n = 0; n < kTokens; ++n) {
      const uint32_t token = Tiling::token(lane, n);
      const float by = __shfl_sync(kFullWarp, inverse, token);
      const uint32_t first = first_chunk(math_warp);
      static_assert(kChunks == 2);
      const uint16_t codes = ptx::e4m3_pair(__fmul_rn(sum_[0][Tiling::sum(n, 0)], by),  //
                                            __fmul_rn(sum_[1][Tiling::sum(n, 0)], by));
      ptx::store_shared_u8(codes_at + Tiling::code_offset(token, Tiling::act_column(first, math_warp % 4, lane)),
                           codes);
      ptx::store_shared_u8(codes_at + Tiling::code_offset(token, Tiling::act_column(first + 1, math_warp % 4, lane)),
                           codes >> 8);
    }
  }

  /// Rows rounded to BF16, straight to the combine buffers of the ranks that they came from: staging has no room for
  /// them. Ordered before the tile's end like what goes through staging: release_staging, then finish_tile, which
  /// releases for all math warps.
  __device__ __forceinline__ void store_rows(Context<Spec>& c, uint32_t math_warp, const TileNote& tile) {
    if (has_failed(c.shared)) return;  // the rows' metadata may not be there
    const protocol::WorkspaceSpec& spec = c.view().spec;
    const uint32_t hidden = spec.shape.hidden, top_k = spec.shape.top_k, lane = c.lane();
    const uint32_t num_rows = tile.num_rows - TileForm::of<Spec>(tile.num_rows).main_rows;
    const uint32_t first_column = tile.n * Spec::kSpec.tile_n + first_chunk(math_warp) * Tiling::kChunkRows;
#pragma unroll
    for (uint32_t n = 0; n < kRows / 8; ++n) {  // 8 rows
      const uint32_t row = n * 8 + lane / 4;
      const uint32_t source = __shfl_sync(kFullWarp, source_, row), at = __shfl_sync(kFullWarp, token_slot_, row);
      uint16_t* to = c.peer(c.layout().combine_rows, source) +
                     (uint64_t{at % top_k} * spec.max_tokens + at / top_k) * hidden + first_column;
#pragma unroll
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
          const float* x = &sum_[chunk][n * 4 + half * 2];
          const uint32_t pair = ptx::transpose_matrix(ptx::bf16_pair(x[0], x[1]));
          const uint32_t column = chunk * Tiling::kChunkRows + math_warp % 4 * 16 + half * 8 + lane % 4 * 2;
          if (row < num_rows && first_column + column < hidden) *reinterpret_cast<uint32_t*>(to + column) = pair;
        }
      }
    }
  }

 private:
  /// From the largest magnitudes of each warp to the rows' scales in staging. Returns, in lane i, what to multiply row
  /// i by.
  __device__ __forceinline__ static float share_scales(Context<Spec>& c, uint32_t math_warp, uint32_t amaxes,
                                                       uint32_t main_rows, uint32_t amax_phase) {
    const uint32_t barrier = ptx::shared_address(&c.shared.amax_full), lane = c.lane();
    __syncwarp();
    c.chaos();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
    wait_barrier(c, barrier, amax_phase, Role::kMath);
    float amax = 0.0f;
#pragma unroll
    for (uint32_t warp = 0; warp < Shared::kMathWarps; ++warp)
      amax = fmaxf(amax, ptx::load_shared(amaxes + (warp * kRows + lane % kRows) * 4));
    const float scale = core::group_scale(amax);
    if (math_warp == 0 && lane < kRows) c.shared.staged_scales[main_rows + lane] = scale;
    return core::group_inverse(scale);
  }

  Part sum_;
  uint32_t source_ = 0;
  uint32_t token_slot_ = 0;
  float weight_ = 0;
};

}  // namespace megamoe::sm90
