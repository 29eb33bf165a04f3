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
  static constexpr uint32_t kTokens = Tiling::num_tokens(kRows);

 public:
  static constexpr uint32_t kWarpgroups = 2, kChunks = Tiling::kChunks / kWarpgroups;  ///< Of one warpgroup.
  using Part = float[Tiling::num_sums(kRows)];                                         ///< Of one chunk.
  struct Scales {
    float token[kTokens];
    float2 groups;  ///< Of the first and second 8 of each 16 weight rows.
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
  /// rows' arrival, like RowNotes::prefetch.
  __device__ __forceinline__ void find(Context<Spec>& c, const TileNote& tile) {
    const uint32_t row = TileForm::of<Spec>(tile.num_rows).main_rows + c.lane();
    if (c.lane() >= kRows || row >= tile.num_rows) return;
    const protocol::RowMeta* meta = c.own(c.layout().row_meta) + uint64_t{tile.block} * Spec::kSpec.room_m() + row;
    const uint4 raw = ptx::load_l2(reinterpret_cast<const uint4*>(meta));
    targets_.source[0] = raw.x & 0xffff;
    targets_.token_slot[0] = raw.y;
    weight_ = __uint_as_float(raw.z);
  }

  /// Issues a chunk's multiplies over a stage's 128 columns.
  /// @param weights, tokens  operands of the warpgroup's first chunk, and of the further rows
  __device__ __forceinline__ static void issue(uint32_t chunk, uint32_t weights, uint32_t tokens, Part& part) {
    const uint32_t a = weights + chunk * Tiling::kChunkRows * 8;
    ptx::Wgmma<kRows>::multiply(part, ptx::operand(a), ptx::operand(tokens));
#pragma unroll
    for (uint32_t k = 1; k < 4; ++k)
      ptx::Wgmma<kRows>::multiply_add(part, ptx::operand(a + k * 2), ptx::operand(tokens + k * 2));
  }

  /// @param main_rows  rows of the stage before the further ones
  /// @param shared     address of SharedStorage
  __device__ __forceinline__ static Scales read_scales(uint32_t stage, uint32_t main_rows, float2 groups,
                                                       uint32_t shared, uint32_t lane) {
    const uint32_t scales = shared + offsetof(Shared, token_scales) + (stage * Spec::kSpec.room_m() + main_rows) * 4;
    Scales read;
    read.groups = groups;
#pragma unroll
    for (uint32_t n = 0; n < kTokens; ++n) read.token[n] = ptx::load_shared(scales + Tiling::token(lane, n) * 4);
    return read;
  }

  /// sum = fma(part, token scale * weight scale, sum), the products rounded once; see SwappedMathWarp::promote.
  __device__ __forceinline__ void promote(uint32_t chunk, Part& part, const Scales& scales) {
#pragma unroll
    for (uint32_t n = 0; n < kTokens; ++n) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t i = Tiling::sum(n, half);
        asm volatile("" : "+f"(part[i])::"memory");  // no read moves above the wait
        const float factor = __fmul_rn(scales.token[n], half == 0 ? scales.groups.x : scales.groups.y);
        sum_[chunk][i] = __fmaf_rn(part[i], factor, sum_[chunk][i]);
      }
    }
  }

  /// SwiGLU with the router weight, requantised per 128 columns: codes straight to where they belong (staging has no
  /// room for them, and the second GEMM's bulk copies come after a proxy fence), scales to the others in staging. By
  /// all math warps, before they stage the tile's other rows.
  __device__ __forceinline__ void store_activations(Context<Spec>& c, uint32_t math_warp, const TileNote& tile,
                                                    uint32_t amax_phase) {
    const bool up_is_first = c.args.weight_scales.up_is_first;
    const float clamp = c.args.clamp;
    const uint32_t lane = c.lane();
    float* amaxes = extra_amax(c, amax_phase);
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
      if (lane < 4) amaxes[math_warp * kRows + token] = amax;
    }
    const uint32_t main_rows = TileForm::of<Spec>(tile.num_rows).main_rows;
    store_codes(c, math_warp, tile, main_rows, share_scales(c, math_warp, amaxes, main_rows, amax_phase));
  }

  /// Rows rounded to BF16.
  __device__ __forceinline__ void store_rows(Context<Spec>& c, uint32_t math_warp, const TileNote& tile) {
    const uint32_t num_rows = tile.num_rows - TileForm::of<Spec>(tile.num_rows).main_rows;
    store_swapped_rows<kRows>(c, tile.n * Spec::kSpec.tile_n + first_chunk(math_warp) * Tiling::kChunkRows,
                              math_warp % 4, has_failed(c.shared) ? 0 : num_rows, targets_, sum_);
  }

 private:
  /// [math warps][kRows]; two buffers, as in exchange_amax, which has the same memory.
  __device__ __forceinline__ static float* extra_amax(Context<Spec>& c, uint32_t phase) {
    return &c.shared.amax[phase][0][0];
  }

  /// From the largest magnitudes of each warp to the rows' scales in staging. Returns, in lane i, what to multiply row
  /// i by.
  __device__ __forceinline__ static float share_scales(Context<Spec>& c, uint32_t math_warp, const float* amaxes,
                                                       uint32_t main_rows, uint32_t amax_phase) {
    const uint32_t barrier = ptx::shared_address(&c.shared.amax_full), lane = c.lane();
    __syncwarp();
    c.chaos();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
    wait_barrier(c, barrier, amax_phase, Role::kMath);
    float amax = 0.0f;
#pragma unroll
    for (uint32_t warp = 0; warp < Shared::kMathWarps; ++warp) amax = fmaxf(amax, amaxes[warp * kRows + lane % kRows]);
    const float scale = core::group_scale(amax);
    if (math_warp == 0 && lane < kRows) c.shared.staged_scales[main_rows + lane] = scale;
    return core::group_inverse(scale);
  }

  /// Two columns of a row at a time: 8 columns of 8 rows change places between the lanes.
  /// @param inverse  in lane i, what to multiply row i by
  __device__ __forceinline__ void store_codes(Context<Spec>& c, uint32_t math_warp, const TileNote& tile,
                                              uint32_t main_rows, float inverse) {
    static_assert(kChunks == 2);
    const protocol::RankView& view = c.view();
    const uint32_t lane = c.lane(), intermediate = view.spec.shape.intermediate;
    const uint32_t column = tile.n * 128 + Tiling::act_column(first_chunk(math_warp), math_warp % 4, 0) + lane % 4 * 2;
    const uint64_t first_row = uint64_t{view.act_ring().slot(tile.block)} * Spec::kSpec.room_m() + main_rows;
    const bool is_told = !has_failed(c.shared);
    uint8_t* rows = c.own(c.layout().act_codes) + first_row * intermediate + column;
#pragma unroll
    for (uint32_t n = 0; n < kTokens; n += 2) {  // 8 rows
      uint32_t codes = 0;
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const float by = __shfl_sync(kFullWarp, inverse, Tiling::token(lane, n + i));
        const uint32_t of_chunks = ptx::e4m3_pair(__fmul_rn(sum_[0][Tiling::sum(n + i, 0)], by),
                                                  __fmul_rn(sum_[1][Tiling::sum(n + i, 0)], by));
        codes |= of_chunks << i * 16;
      }
      const uint32_t turned = ptx::transpose_matrix(codes);  // one row, two columns: the bytes of both chunks by turns
      uint8_t* to = rows + uint64_t{n * 4 + lane / 4} * intermediate;
#pragma unroll
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const uint32_t offset = chunk * Tiling::kChunkRows / 2;
        if (is_told && column + offset < intermediate)
          *reinterpret_cast<uint16_t*>(to + offset) =
              static_cast<uint16_t>(__byte_perm(turned, 0, chunk == 0 ? 0x20 : 0x31));
      }
    }
  }

  Part sum_[kChunks];
  TokenTargets<kRows> targets_;
  float weight_ = 0;
};

}  // namespace megamoe::sm90
