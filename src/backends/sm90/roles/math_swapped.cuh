// The math role where operands are swapped: the k loop of both GEMMs with weights as the multiply's rows and tokens as
// its columns. Every sum goes through the same operations in the same order as in roles/math, so its bits are the same.
#pragma once

#include "backends/sm90/ptx/wgmma.cuh"
#include "backends/sm90/roles/math_rings.cuh"
#include "backends/sm90/roles/swapped_epilogue.cuh"

namespace megamoe::sm90 {

/// One of the four math warps.
template <class Spec>
class SwappedMathWarp : MathRings<Spec> {
  using Base = MathRings<Spec>;

 public:
  __device__ explicit SwappedMathWarp(Context<Spec>& c)
      : Base(c),
        weights_low_(uniform(ptx::operand_low(shared_ + offsetof(Shared, stages) + sizeof(Shared::Stage::tokens)))),
        tokens_low_(uniform(ptx::operand_low(shared_ + offsetof(Shared, stages)))) {}

  /// Runs tiles until the load role announces the end. False: something is broken, or the call failed.
  __device__ __forceinline__ bool run_tiles() {
    while (wait_note()) {
      const TileNote tile = announced_tile();
      if (tile.kind == kNoteEnd) return !has_failed(c_.shared);
      const bool ok = tile.num_rows <= 8    ? run_tile<8>(tile)
                      : tile.num_rows <= 16 ? run_tile<16>(tile)
                      : tile.num_rows <= 32 ? run_tile<32>(tile)
                                            : run_tile<64>(tile);
      if (!ok) return false;
      release_note();
    }
    return false;
  }

 private:
  using Base::advance_stage, Base::amax_phase, Base::announced_tile, Base::release_note, Base::release_stage;
  using Base::c_, Base::shared_, Base::slot_, Base::stage_, Base::stage_low_, Base::state_;
  using Base::kAmaxPhase, Base::kBroken;
  using Base::release_staging, Base::uniform, Base::wait_note, Base::wait_stage, Base::wait_staging;
  using typename Base::Shared;
  using Tiling = SwappedTiling;
  static_assert(Tiling::kChunks * Tiling::kChunkRows == Spec::kSpec.tile_n && Spec::kSpec.block_m == 64);

  /// Chunks that are multiplied together, as far as their partial sums find registers beside the final ones.
  template <uint32_t kN>
  static constexpr uint32_t kAtOnce = kN < 64 ? 4 : 2;

  /// Scales of one k-block: of this thread's tokens, and of the weight rows.
  template <uint32_t kN>
  struct Scales {
    float token[Tiling::num_tokens(kN)];
    float4 groups;  ///< As in SharedStorage::weight_scales.
  };
  template <uint32_t kN>
  __device__ __forceinline__ Scales<kN> read_scales() const {
    const uint32_t tokens = shared_ + offsetof(Shared, token_scales) + stage_.index * Spec::kSpec.block_m * 4;
    const uint32_t weights = shared_ + offsetof(Shared, weight_scales) + stage_.index * 16;
    Scales<kN> scales;
#pragma unroll
    for (uint32_t n = 0; n < Tiling::num_tokens(kN); ++n)
      scales.token[n] = ptx::load_shared(tokens + Tiling::token(c_.lane(), n) * 4);
    const float2 first = ptx::load_shared_pair(weights), second = ptx::load_shared_pair(weights + 8);
    scales.groups = {first.x, first.y, second.x, second.y};
    return scales;
  }

  /// Issues the four multiplies of one chunk over the stage's 128 columns.
  template <uint32_t kN>
  __device__ __forceinline__ void issue(uint32_t chunk, float (&part)[Tiling::num_sums(kN)]) {
    const uint32_t a = weights_low_ + stage_low_ + chunk * Tiling::kChunkRows * 8, b = tokens_low_ + stage_low_;
    ptx::Wgmma<kN>::multiply_over(part, ptx::operand(a), ptx::operand(b));
#pragma unroll
    for (uint32_t k = 1; k < 4; ++k)
      ptx::Wgmma<kN>::multiply_add(part, ptx::operand(a + k * 2), ptx::operand(b + k * 2));
  }

  /// sum = fma(part, token scale * weight scale, sum), the products rounded once.
  template <uint32_t kN>
  __device__ __forceinline__ void promote(uint32_t chunk, float (&part)[Tiling::num_sums(kN)],
                                          float (&sum)[Tiling::num_sums(kN)], const Scales<kN>& scales) {
    const bool is_second = chunk >= Tiling::kChunks / 2;
    const float weight[2] = {is_second ? scales.groups.z : scales.groups.x,
                             is_second ? scales.groups.w : scales.groups.y};
#pragma unroll
    for (uint32_t n = 0; n < Tiling::num_tokens(kN); ++n) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t i = Tiling::sum(n, half);
        asm volatile("" : "+f"(part[i])::"memory");  // no read moves above the wait
        sum[i] = __fmaf_rn(part[i], __fmul_rn(scales.token[n], weight[half]), sum[i]);
      }
    }
  }

  /// One k-block of a stage that is there.
  template <uint32_t kN>
  __device__ __forceinline__ void k_block(SwappedSums<kN>& sums) {
    Scales<kN> scales;
#pragma unroll
    for (uint32_t first = 0; first < Tiling::kChunks; first += kAtOnce<kN>) {
      float part[kAtOnce<kN>][Tiling::num_sums(kN)];
      ptx::wgmma_fence();
#pragma unroll
      for (uint32_t n = 0; n < kAtOnce<kN>; ++n) issue<kN>(first + n, part[n]);
      ptx::wgmma_commit();
      if (first == 0) scales = read_scales<kN>();
      ptx::wgmma_wait();
      if (first + kAtOnce<kN> == Tiling::kChunks) {
        __syncwarp();  // all lanes have read their scales
        release_stage(stage_.index);
        advance_stage();
      }
#pragma unroll
      for (uint32_t n = 0; n < kAtOnce<kN>; ++n) promote<kN>(first + n, part[n], sums.value[first + n], scales);
    }
  }

  /// A tile of at most kN tokens.
  template <uint32_t kN>
  __device__ __forceinline__ bool run_tile(const TileNote& tile) {
    const protocol::WorkspaceSpec& spec = c_.view().spec;
    const bool is_l1 = tile.kind == kNoteL1;
    const protocol::Event event = is_l1 ? protocol::Event::kL1Tile : protocol::Event::kL2Tile;
    const uint32_t k_blocks = is_l1 ? spec.hidden_groups() : spec.intermediate_groups();
    SwappedSums<kN> sums;
    LaneTokens<kN> topk_weights;
    TokenTargets<kN> targets;
    c_.trace(event, false, tile.block);
    for (uint32_t k = 0; k < k_blocks; ++k) {
      wait_stage();
      if (k == 0 && is_l1) topk_weights = read_topk_weights<kN>(c_, tile.block);
      if (k == 0 && !is_l1) targets.read(c_, tile.block);
      k_block<kN>(sums);
    }
    c_.trace(event, true, tile.block);
    c_.trace(protocol::Event::kStageTile, false, tile.block);
    // A warp writes to the parts of staging of all warps: nothing of this tile goes there before the store warp has
    // read the whole last one, and it reads only what all warps have released.
    if ((state_ & kBroken) != 0 || !wait_staging()) return false;
    const uint32_t warp = c_.warp() - Spec::kSpec.plan.first_warp(Role::kMath);
    if (is_l1) {
      stage_swapped_activations<kN>(c_, warp, sums, topk_weights, amax_phase());
      state_ ^= kAmaxPhase;
    } else {
      store_swapped_rows<kN>(c_, tile.n * Spec::kSpec.tile_n, warp, has_failed(c_.shared) ? 0 : tile.num_rows, targets,
                             sums.value);
    }
    ptx::proxy_fence_shared();  // read by bulk copies
    __syncwarp();
    release_staging();
    c_.trace(protocol::Event::kStageTile, true, tile.block);
    return true;
  }

  const uint32_t weights_low_;
  const uint32_t tokens_low_;
};

}  // namespace megamoe::sm90
