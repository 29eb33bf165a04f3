// The store role: moves finished first-GEMM tiles from staging to where they belong, by bulk copies, and tells the
// others of every finished tile.
#pragma once

#include "backends/sm90/math_tiling.cuh"
#include "backends/sm90/roles/load.cuh"

namespace megamoe::sm90 {

/// Tells that a tile is stored; by one thread. What the math warps stored themselves is released with it: `staged` was
/// acquired. Order: acts_full is released at rank scope (pairs with wait_tile_inputs and, as the end of the token rows'
/// use, with pull_rows). acts_empty and expert_blocks_done acquire and release at rank scope, so the last tile of an
/// expert has acquired all of the expert's rows; expert_done is then released at system scope (pairs with wait_experts
/// in roles/combine).
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

/// Of the first GEMM: codes, 16 rows of a math warp by one tensor copy, which cuts what lies past the last column; and
/// the scales of all rows, which lie side by side.
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
  if (math_warp >= Storage::kMathWarps) return;
  const MathPlace<Spec> place(math_warp, false);  // split tiles are staged like whole ones
  const uint32_t column = tile.n * 128 + place.warpgroup_n * (Tiling::kColumns / 2);
  if (place.first_row() >= core::min(tile.num_rows, form.main_rows) || column >= c.view().spec.shape.intermediate)
    return;
  const uint32_t ring_row = act_slot * kRoomM + place.first_row();
  ptx::tma_store_2d(c.args.maps.acts_store, Tiling::staging_slab(c, math_warp), column, ring_row);
  ptx::bulk_commit();
}

/// After a failure it still empties the staging, but tells nobody.
template <class Spec>
__device__ __forceinline__ void store_tiles(Context<Spec>& c) {
  protocol::RingState slot;
  uint32_t phase = 0;
  TileNote tile;
  while (read_note(c, slot, Role::kStore, tile) && tile.kind != kNoteEnd) {
    const bool is_l1 = tile.kind == kNoteL1;
    const uint32_t expert_blocks = FewSlots::fit(c) ? 1 : c.pool_plan().blocks_of(tile.local_expert);
    if (!wait_barrier(c, ptx::shared_address(&c.shared.staged), phase, Role::kStore)) return;
    c.trace(protocol::Event::kStoreTile, false, tile.block);
    const bool failed = has_failed(c.shared);
    if (is_l1 && !failed) store_activations(c, tile);
    ptx::bulk_wait_read<0>();
    __syncwarp();
    c.chaos();
    if (c.lane() == 0) ptx::mbarrier_arrive(ptx::shared_address(&c.shared.staging_empty));
    ptx::bulk_wait_written();
    __syncwarp();
    if (c.lane() == 0) {
      if (!failed) finish_tile(c, tile, expert_blocks);
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
