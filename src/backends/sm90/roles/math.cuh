// The math role: the k loop of both GEMMs, with the partial sums of each 128 columns promoted exactly.
#pragma once

#include "backends/sm90/ptx/wgmma.cuh"
#include "backends/sm90/roles/math_extra.cuh"
#include "backends/sm90/roles/math_rings.cuh"
#include "backends/sm90/roles/store_rows.cuh"
#include "backends/sm90/roles/swiglu.cuh"

namespace megamoe::sm90 {

/// One math warp; tokens are the multiply's rows.
template <class Spec>
class MathWarp : MathRings<Spec> {
  using Base = MathRings<Spec>;

 public:
  using Tiling = MathTiling<Spec>;
  using Sums = typename Tiling::Sums;

  __device__ explicit MathWarp(Context<Spec>& c) : Base(c) {}

  /// Runs tiles until the load role announces the end. False: something is broken, or the call failed.
  __device__ __forceinline__ bool run_tiles() {
    // While the first tokens are on their way, both epilogues run once for nothing: their instructions are not in any
    // cache yet, and the first tile of a small batch would wait 7 us for them.
    for (state_ = kDryL1;;) {
      const bool is_dry = this->is_dry();
      if (!is_dry && !wait_note()) return false;
      if (tile().kind == kNoteEnd) return !has_failed(c_.shared);
      const protocol::Event event = tile().kind == kNoteL1 ? protocol::Event::kL1Tile : protocol::Event::kL2Tile;
      c_.trace(event, false, tile().block);
      Sums sums;
      multiply(sums);
      c_.trace(event, true, tile().block);
      c_.trace(protocol::Event::kStageTile, false, tile().block);
      if ((state_ & kBroken) != 0 || !stage(sums)) return false;
      c_.trace(protocol::Event::kStageTile, true, tile().block);
      if (is_dry) {
        state_ = (state_ & kDryL1) != 0 ? state_ ^ (kDryL1 | kDryL2) : state_ ^ kDryL2;
        if (!this->is_dry() && !meet_after_dry_passes()) return false;
        continue;
      }
      release_note();
    }
  }

 private:
  using Base::advance_stage, Base::amax_phase, Base::announced_tile, Base::release_note, Base::release_stage;
  using Base::c_, Base::shared_, Base::slot_, Base::stage_, Base::stage_low_, Base::state_;
  using Base::release_staging, Base::stage_full, Base::uniform, Base::wait_note, Base::wait_stage, Base::wait_staging;
  using typename Base::Shared;

  using Base::kAmaxPhase, Base::kBroken;
  enum DryState : uint32_t {
    kDryL1 = Base::kFirstFreeBit,      ///< This pass only brings the first epilogue's instructions, the next one ...
    kDryL2 = Base::kFirstFreeBit * 2,  ///< ... the second's.
  };
  __device__ __forceinline__ bool is_dry() const { return (state_ & (kDryL1 | kDryL2)) != 0; }

  static constexpr bool kHasExtra = Spec::kSpec.extra_m != 0;

  /// Worked out anew where it is needed, like the tile below: the k loop has no register for it.
  __device__ __forceinline__ uint32_t math_warp() const { return c_.warp() - Spec::kSpec.plan.first_warp(Role::kMath); }
  __device__ __forceinline__ MathPlace<Spec> place(bool split) const { return MathPlace<Spec>(math_warp(), split); }

  __device__ __forceinline__ TileNote tile() const {
    if (is_dry()) return {(state_ & kDryL1) != 0 ? kNoteL1 : kNoteL2, 0, 0, 0, Spec::kSpec.block_m};
    return announced_tile();
  }

  /// In a split tile two warps write one part of staging: what one of them left there for nothing comes before.
  __device__ __forceinline__ bool meet_after_dry_passes() {
    if constexpr (Tiling::kSplitsHalfTiles) {
      const uint32_t barrier = shared_ + offsetof(Shared, dry_passes_done);
      ptx::mbarrier_arrive(barrier);
      if (!wait_barrier(c_, barrier, 0, Role::kMath)) return false;
    }
    return true;
  }

  /// Turns the sums into what is stored: activations are left in this warp's part of staging, rows go where they
  /// belong.
  __device__ __forceinline__ bool stage(Sums& sums) {
    const bool is_dry = this->is_dry();
    if (!is_dry && !wait_staging()) return false;
    const TileNote tile = this->tile();
    if (TileForm::of<Spec>(tile.num_rows).template is_split<Spec>()) {
      stage_as<Tiling::kSplitsHalfTiles ? 1 : Tiling::kWaves, true>(sums, tile, place(Tiling::kSplitsHalfTiles));
    } else {
      stage_as<Tiling::kWaves, (Tiling::kWarpgroupsN > 1)>(sums, tile, place(false));
    }
    ptx::proxy_fence_shared();  // read by bulk copies
    __syncwarp();
    if (!is_dry) release_staging();
    return true;
  }

  /// @tparam kSharesRows  warpgroups exchange row maxima, so all of them take part
  template <uint32_t kWaves, bool kSharesRows>
  __device__ __forceinline__ void stage_as(Sums& sums, const TileNote& tile, const MathPlace<Spec>& at) {
    const bool has_rows = at.first_row() < tile.num_rows;
    if (tile.kind == kNoteL1) {
      if (has_rows || kSharesRows) stage_activations<kWaves, kSharesRows>(c_, at, sums, amax_phase());
      if (kSharesRows) state_ ^= kAmaxPhase;
      if (!has_rows && !kSharesRows) RowNotes::await();  // or the prefetch could land on the next tile's
    } else {
      // Nothing in a dry pass; and after a failure the rows' notes may not be there.
      store_rows<kWaves>(c_, at, tile, is_dry() || has_failed(c_.shared) ? 0 : tile.num_rows, sums);
    }
  }

  /// Scales of one k-block: of this thread's two rows, and of the even and odd groups of 8 columns among 128.
  struct Scales {
    float row[2];
    float2 groups;
  };
  /// @param half  the tile's first (0) or second (1) 128 columns
  __device__ __forceinline__ float2 group_scales(uint32_t stage, uint32_t half) const {
    return ptx::load_shared_pair(shared_ + offsetof(Shared, weight_scales) + stage * 16 + half * 8);
  }

  __device__ __forceinline__ Scales read_scales(uint32_t stage, uint32_t half) const {
    const uint32_t row = scale_row_ + stage * Spec::kSpec.room_m() * 4;
    return {{ptx::load_shared(row), ptx::load_shared(row + 32)}, group_scales(stage, half)};
  }

  /// Issues the four multiplies of one wave of kN columns over the stage's 128 columns.
  template <uint32_t kN>
  __device__ __forceinline__ void issue(uint32_t column, uint32_t stage_low, float (&part)[kN / 2]) {
    const uint32_t a = tokens_low_ + stage_low, b = weights_low_ + stage_low + column * 8;
    if (column == 0) {
      ptx::Wgmma<kN>::multiply(part, ptx::operand(a), ptx::operand(b));
    } else {
      ptx::Wgmma<kN>::multiply_over(part, ptx::operand(a), ptx::operand(b));
    }
#pragma unroll
    for (uint32_t k = 1; k < 4; ++k)
      ptx::Wgmma<kN>::multiply_add(part, ptx::operand(a + k * 2), ptx::operand(b + k * 2));
  }

  /// Where this warp's operands and scales lie in the first stage.
  __device__ __forceinline__ void find_operands(const MathPlace<Spec>& at) {
    const uint32_t stages = shared_ + offsetof(Shared, stages);
    const uint32_t columns = at.split ? Tiling::kWaveN : Tiling::kColumns;
    tokens_low_ = uniform(ptx::operand_low(stages + at.warpgroup_m * 64 * 128));
    weights_low_ = uniform(ptx::operand_low(stages + sizeof(Shared::Stage::tokens) + at.warpgroup_n * columns * 128));
    scale_row_ = shared_ + offsetof(Shared, token_scales) + (at.first_row() + c_.lane() / 4) * 4;
  }

  /// sum = fma(part, row scale * column scale, sum), the products rounded once.
  template <uint32_t kRegisters>
  __device__ __forceinline__ void promote(float (&part)[kRegisters], float* sum, const Scales& scales) {
    const float even = scales.groups.x, odd = scales.groups.y;
    const float factor[2][2] = {{__fmul_rn(scales.row[0], even), __fmul_rn(scales.row[1], even)},
                                {__fmul_rn(scales.row[0], odd), __fmul_rn(scales.row[1], odd)}};
#pragma unroll
    for (uint32_t i = 0; i < kRegisters; ++i) {
      asm volatile("" : "+f"(part[i])::"memory");  // no read moves above the wait
      sum[i] = __fmaf_rn(part[i], factor[i / 4 % 2][i / 2 % 2], sum[i]);
    }
  }

  /// Which 128 of the tile's columns a wave multiplies.
  template <bool kSplit>
  __device__ __forceinline__ uint32_t half(uint32_t wave) const {
    if constexpr (kSplit) return place(true).warpgroup_n * Tiling::kWaveN / 128;
    const uint32_t first = Tiling::kWarpgroupsN > 1 ? place(false).warpgroup_n * Tiling::kColumns : 0;
    return (first + wave * Tiling::kWaveN) / 128;
  }

  /// One k-block of a stage that is there. While its last wave runs, looks whether the next stage is there too and
  /// reads its scales.
  template <bool kSplit>
  __device__ __forceinline__ void k_block(bool is_last, Sums& sums, Scales& scales, bool& ready) {
    constexpr uint32_t kWaves = kSplit ? 1 : Tiling::kWaves;
    const uint32_t stage = stage_.index, low = stage_low_;
    Scales coming{};
    float part[Tiling::kRegisters];
#pragma unroll
    for (uint32_t wave = 0; wave < kWaves; ++wave) {
      ptx::wgmma_fence();
      issue<Tiling::kWaveN>(wave * Tiling::kWaveN, low, part);
      ptx::wgmma_commit();
      if (wave > 0 && wave * Tiling::kWaveN % 128 == 0) scales.groups = group_scales(stage, half<kSplit>(wave));
      if (wave == kWaves - 1) {
        advance_stage();
        ready = !is_last && test_warp(stage_full(stage_.index), stage_.phase);
        if (ready && c_.chaos()) coming = read_scales(stage_.index, half<kSplit>(0));
      }
      ptx::wgmma_wait();
      if (wave == kWaves - 1) release_stage(stage);
      promote(part, sums.value[wave], scales);
    }
    scales = coming;
  }

  /// The same of a tile with further rows. Waves are half as wide, or partial sums of both would not find registers. A
  /// chunk of the further rows follows every second wave (each one of a split tile): it keeps the multipliers busy
  /// while the wave's sums are promoted.
  template <bool kSplit>
  __device__ __forceinline__ void k_block_extra(uint32_t warpgroup, Sums& sums, ExtraRows<Spec>& extra) {
    using Extra = ExtraRows<Spec>;
    constexpr uint32_t kN = Tiling::kWaveN / 2, kWaves = (kSplit ? Tiling::kWaveN : Tiling::kColumns) / kN;
    constexpr uint32_t kMainRows = kSplit ? 64 : Spec::kSpec.block_m, kWavesOfChunk = kWaves / Extra::kChunks;
    const uint32_t stage = stage_.index, low = stage_low_;
    // Further rows lie behind the others; of the weights, each warpgroup takes its half.
    const uint32_t extra_a = weights_low_ + low + (kSplit ? 0 : warpgroup * 128) * 8;
    const uint32_t extra_b = tokens_low_ + low + (kMainRows - (kSplit ? 0 : warpgroup * 64)) * 8;
    Scales scales = read_scales(stage, half<kSplit>(0));
    float part[kN / 2];
    typename Extra::Part extra_part[Extra::kChunks];
#pragma unroll
    for (uint32_t wave = 0; wave < kWaves; ++wave) {
      const uint32_t column = wave * kN, chunk = wave / kWavesOfChunk;
      const bool starts_chunk = wave % kWavesOfChunk == 0;
      ptx::wgmma_fence();
      issue<kN>(column, low, part);
      ptx::wgmma_commit();
      if (starts_chunk) {
        Extra::issue(chunk, extra_a, extra_b, extra_part[chunk]);
        ptx::wgmma_commit();
      }
      if (wave > 0 && column % 128 == 0) scales.groups = group_scales(stage, column / 128);
      if (starts_chunk) {
        ptx::wgmma_wait<1>();
      } else {
        ptx::wgmma_wait();
      }
      promote(part, &sums.value[column / Tiling::kWaveN][column % Tiling::kWaveN / 2], scales);
    }
    ptx::wgmma_wait();
    const auto extra_scales = Extra::read_scales(stage, kMainRows, group_scales(stage, warpgroup), shared_, c_.lane());
    __syncwarp();  // all lanes have read their scales
    release_stage(stage);
    advance_stage();
#pragma unroll
    for (uint32_t chunk = 0; chunk < Extra::kChunks; ++chunk) extra.promote(chunk, extra_part[chunk], extra_scales);
  }

  /// A tile with further rows, which leave their registers before the others are staged.
  template <bool kSplit>
  __device__ __forceinline__ void run_k_blocks_extra(const TileNote& tile, uint32_t k_blocks, Sums& sums) {
    const uint32_t warpgroup = uniform(math_warp() / 4);
    ExtraRows<Spec> extra;
    clear<kSplit>(sums);
    extra.clear();
    for (uint32_t k = 0; k < k_blocks; ++k) {
      wait_stage();
      if (k == 0) {
        RowNotes::prefetch(c_, place(kSplit), tile);
        extra.find(c_, tile);
      }
      k_block_extra<kSplit>(warpgroup, sums, extra);
    }
    if ((state_ & kBroken) != 0) return;
    if (tile.kind == kNoteL2) return extra.store_rows(c_, math_warp(), tile);
    extra.store_activations(c_, math_warp(), tile, amax_phase());
    state_ ^= kAmaxPhase;
  }

  template <bool kSplit>
  __device__ __forceinline__ static void clear(Sums& sums) {
#pragma unroll
    for (uint32_t wave = 0; wave < (kSplit ? 1 : Tiling::kWaves); ++wave) {
#pragma unroll
      for (uint32_t i = 0; i < Tiling::kRegisters; ++i) sums.value[wave][i] = 0.0f;
    }
  }

  template <bool kSplit>
  __device__ __forceinline__ void run_k_blocks(const TileNote& tile, uint32_t k_blocks, Sums& sums) {
    clear<kSplit>(sums);
    if (k_blocks == 0) return;
    wait_stage();
    RowNotes::prefetch(c_, place(kSplit), tile);
    Scales scales = read_scales(stage_.index, half<kSplit>(0));
    bool ready = true;
    for (uint32_t k = 0; k < k_blocks; ++k) {
      if (!ready) {
        wait_stage();
        scales = read_scales(stage_.index, half<kSplit>(0));
      }
      k_block<kSplit>(k + 1 == k_blocks, sums, scales, ready);
    }
  }

  __device__ __forceinline__ uint32_t num_k_blocks(const TileNote& tile) const {
    const protocol::WorkspaceSpec& spec = c_.view().spec;
    if (is_dry()) return 0;
    return tile.kind == kNoteL1 ? spec.hidden_groups() : spec.intermediate_groups();
  }

  __device__ __forceinline__ void multiply(Sums& sums) {
    const TileNote tile = this->tile();
    const bool split = Tiling::kSplitsHalfTiles && TileForm::of<Spec>(tile.num_rows).template is_split<Spec>();
    const MathPlace<Spec> at = place(split);
    const uint32_t k_blocks = num_k_blocks(tile);
    find_operands(at);
    if constexpr (kHasExtra) {
      const bool has_extra = TileForm::of<Spec>(tile.num_rows).has_extra;
      if (has_extra && split) return run_k_blocks_extra<true>(tile, k_blocks, sums);
      if (has_extra) return run_k_blocks_extra<false>(tile, k_blocks, sums);
    }
    if (Tiling::kSplitsHalfTiles && split) {
      run_k_blocks<Tiling::kSplitsHalfTiles>(tile, k_blocks, sums);
    } else if (at.warpgroup_m * 64 < tile.num_rows) {
      run_k_blocks<false>(tile, k_blocks, sums);
    } else {
      skip(k_blocks);
    }
  }

  /// Of a tile in which this warpgroup has no rows.
  __device__ __forceinline__ void skip(uint32_t k_blocks) {
    for (uint32_t k = 0; k < k_blocks; ++k) {
      wait_stage();
      release_stage(stage_.index);
      advance_stage();
    }
  }

  uint32_t tokens_low_ = 0;
  uint32_t weights_low_ = 0;
  uint32_t scale_row_ = 0;  ///< Shared address of the first stage's scale of this thread's first row.
};

}  // namespace megamoe::sm90
