// The store role: moves finished tiles from staging to where they belong, by bulk copies, and tells the others.
#pragma once

#include "backends/sm90/math_tiling.cuh"
#include "backends/sm90/roles/load.cuh"

namespace megamoe::sm90 {

/// What the store warp needs to know of a second-GEMM tile, looked up while the tile is still being multiplied: where
/// each of a lane's rows goes (not the further ones, see roles/math_extra), and how many blocks its expert has.
template <class Spec>
struct TileTargets {
  static constexpr uint32_t kRows = Spec::kSpec.block_m / 32;
  uint32_t source[kRows];
  uint32_t token_slot[kRows];
  uint32_t expert_blocks;
};

/// Order: acquires acts_full of all first-GEMM tiles of the block, whose math warps had acquired its rows' metadata;
/// pairs with finish_tile.
template <class Spec>
__device__ __forceinline__ bool find_targets(Context<Spec>& c, const TileNote& tile, TileTargets<Spec>& targets) {
  const uint32_t* counter = c.own_bank(c.layout().acts_full) + tile.block;
  const uint32_t num_tiles = c.view().schedule.num_l1_tiles;
  if (!wait_warp(c, {Signal::kActsFull, Role::kStore, tile.block, num_tiles}, [&](uint64_t& seen) {
        seen = ptx::load_acquire_gpu(counter);
        return seen >= num_tiles;
      }))
    return false;
  const protocol::RowMeta* meta = c.own(c.layout().row_meta) + uint64_t{tile.block} * Spec::kSpec.room_m();
#pragma unroll
  for (uint32_t i = 0; i < TileTargets<Spec>::kRows; ++i) {
    const uint32_t row = c.lane() + i * 32;
    if (row >= tile.num_rows) continue;
    const uint4 raw = ptx::load_l2(reinterpret_cast<const uint4*>(meta + row));
    targets.source[i] = raw.x & 0xffff;
    targets.token_slot[i] = raw.y;
  }
  targets.expert_blocks = c.pool_plan().blocks_of(tile.local_expert);
  return true;
}

/// Tells that a tile is stored; by one thread. Order: acts_full is released at rank scope
/// (pairs with wait_tile_inputs, find_targets and, as the end of the token rows' use, with pull_rows). acts_empty and
/// expert_blocks_done acquire and release at rank scope, so the last tile of an expert has acquired all of the expert's
/// rows; expert_done is then released at system scope (pairs with wait_experts in roles/combine).
template <class Spec>
__device__ __forceinline__ void finish_tile(Context<Spec>& c, const TileNote& tile, uint32_t expert_blocks) {
  const protocol::RankView& view = c.view();
  c.chaos();
  if (tile.kind == kNoteL1) {
    ptx::add_release_gpu(c.own_bank(c.layout().acts_full) + tile.block, 1);
    return;
  }
  if (ptx::add_acq_rel_gpu(c.own_bank(c.layout().acts_empty) + tile.block, 1) + 1 != view.schedule.num_l2_tiles) return;
  c.chaos();
  if (expert_blocks > 1 &&
      ptx::add_acq_rel_gpu(c.own_bank(c.layout().expert_blocks_done) + tile.local_expert, 1) + 1 != expert_blocks)
    return;
  const uint32_t local = view.spec.local_experts(), expert = view.first_expert() + tile.local_expert;
  for (uint32_t n = 0; n < view.spec.num_ranks; ++n) {
    const uint32_t source = protocol::nth_source(view.rank, n, view.spec.num_ranks);
    if (view.spec.num_ranks > 1 &&
        c.own_bank(c.layout().slot_ranges)[uint64_t{source} * local + tile.local_expert].num_rows == 0)
      continue;
    c.chaos();
    ptx::store_release_sys(c.peer(c.layout().expert_done, source) + expert, c.epoch());
  }
}

/// Of the first GEMM: codes, 16 rows of a math warp (or the further rows) by one tensor copy, which cuts what lies past
/// the last column; and the scales of all rows, which lie side by side.
template <class Spec>
__device__ __forceinline__ void store_activations(Context<Spec>& c, const TileNote& tile) {
  using Tiling = MathTiling<Spec>;
  using Storage = SharedStorage<Spec>;
  constexpr uint32_t kRoomM = Spec::kSpec.room_m();
  const TileForm form = TileForm::of<Spec>(tile.num_rows);
  const uint32_t math_warp = c.lane(), act_slot = c.view().act_ring().slot(tile.block);
  if (math_warp == 31) {
    float* to =
        c.own(c.layout().act_scales) + (uint64_t{act_slot} * c.view().spec.intermediate_groups() + tile.n) * kRoomM;
    ptx::bulk_store(to, ptx::shared_address(c.shared.staged_scales), core::align_up(tile.num_rows, 4u) * 4);
    ptx::bulk_commit();
  }
  if (Spec::kSpec.extra_m != 0 && math_warp == Storage::kMathWarps && form.has_extra) {
    ptx::tma_store_2d(c.args.maps.acts_store, Tiling::activation_slab(c, 0) + Storage::kExtraSlab, tile.n * 128,
                      act_slot * kRoomM + form.main_rows);
    ptx::bulk_commit();
  }
  if (math_warp >= Storage::kMathWarps) return;
  const MathPlace<Spec> place(math_warp, false);  // split tiles are staged like whole ones
  const uint32_t column = tile.n * 128 + place.warpgroup_n * (Tiling::kColumns / 2);
  if (place.first_row() >= core::min(tile.num_rows, form.main_rows) || column >= c.view().spec.shape.intermediate)
    return;
  const uint32_t ring_row = act_slot * kRoomM + place.first_row();
  ptx::tma_store_2d(c.args.maps.acts_store, Tiling::activation_slab(c, math_warp), column, ring_row);
  ptx::bulk_commit();
}

/// Rows of the second GEMM, each to the combine buffer of the rank that it came from.
template <class Spec>
__device__ __forceinline__ void scatter_rows(Context<Spec>& c, const TileNote& tile, const TileTargets<Spec>& targets) {
  using Tiling = MathTiling<Spec>;
  const protocol::WorkspaceSpec& spec = c.view().spec;
  const uint32_t hidden = spec.shape.hidden, top_k = spec.shape.top_k;
  const uint32_t num_rows = core::min(tile.num_rows, TileForm::of<Spec>(tile.num_rows).main_rows);
#pragma unroll
  for (uint32_t i = 0; i < TileTargets<Spec>::kRows; ++i) {
    const uint32_t row = c.lane() + i * 32;
    if (row >= num_rows) continue;
    const uint32_t token = targets.token_slot[i] / top_k, slot = targets.token_slot[i] % top_k;
    uint16_t* to =
        c.peer(c.layout().combine_rows, targets.source[i]) + (uint64_t{slot} * spec.max_tokens + token) * hidden;
    for (uint32_t n = 0; n < Tiling::kWarpgroupsN; ++n) {
      const uint32_t column = tile.n * Spec::kSpec.tile_n + n * Tiling::kColumns;
      if (column >= hidden) break;
      const uint32_t math_warp = (row / 64 * Tiling::kWarpgroupsN + n) * 4 + row % 64 / 16;
      ptx::bulk_store(to + column,
                      ptx::shared_address(c.shared.staging[math_warp]) + row % 16 * SharedStorage<Spec>::kStorePitch,
                      core::min(Tiling::kColumns, hidden - column) * 2);
    }
  }
  ptx::bulk_commit();
}

/// After a failure it still empties the staging, but tells nobody.
template <class Spec>
__device__ __forceinline__ void store_tiles(Context<Spec>& c) {
  protocol::RingState slot;
  uint32_t phase = 0;
  TileNote tile;
  while (read_note(c, slot, Role::kStore, tile) && tile.kind != kNoteEnd) {
    TileTargets<Spec> targets;
    const bool found = tile.kind == kNoteL1 || find_targets(c, tile, targets);
    if (!wait_barrier(c, ptx::shared_address(&c.shared.staged), phase, Role::kStore)) return;
    c.trace(protocol::Event::kStoreTile, false, tile.block);
    const bool failed = !found || has_failed(c.shared);
    if (!failed) {
      if (tile.kind == kNoteL1) {
        store_activations(c, tile);
      } else {
        scatter_rows(c, tile, targets);
      }
    }
    ptx::bulk_wait_read<0>();
    __syncwarp();
    c.chaos();
    if (c.lane() == 0) ptx::mbarrier_arrive(ptx::shared_address(&c.shared.staging_empty));
    ptx::bulk_wait_written();
    __syncwarp();
    if (c.lane() == 0) {
      if (!failed) finish_tile(c, tile, targets.expert_blocks);
      c.chaos();
      ptx::mbarrier_arrive(ptx::shared_address(&c.shared.note_empty[slot.index]));
    }
    __syncwarp();
    c.trace(protocol::Event::kStoreTile, true, tile.block);
    phase ^= 1;
    slot.advance(Spec::kSpec.num_tile_slots);
  }
}

}  // namespace megamoe::sm90
