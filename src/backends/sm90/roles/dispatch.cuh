// The dispatch role's body: pull the rows of this rank's experts from their sources into the pool, by bulk copies.
#pragma once

#include "backends/sm90/machine.cuh"
#include "core/formats/ue8m0.h"

namespace megamoe::sm90 {

/// Whether this call's token rows do not go through the pool: the load role reads them where they lie.
template <class Spec>
__device__ __forceinline__ bool gathers_rows(const Context<Spec>& c) {
  return Spec::kSpec.gathers_rows && c.args.gathers_rows;
}

/// Waits for the plan of this call. Pairs with publish_plan.
template <class Spec>
__device__ __forceinline__ bool wait_plan(Context<Spec>& c, Role role) {
  const uint32_t* ready = c.own(c.layout().plan_ready);
  return wait_warp(c, {Signal::kPlanReady, role, 0, c.epoch()}, [&](uint64_t& seen) {
    seen = ptx::load_acquire_gpu(ready);
    return seen == c.epoch();
  });
}

/// The rows of this rank, in pool order (expert by expert, its own rows first), found by their number. Cells are
/// (expert, source) pairs; 32 consecutive ones are at hand. Row numbers must not go down.
template <class Spec>
class RowFinder {
 public:
  struct Row {
    uint32_t source;
    uint32_t list_index;  ///< In the source's slot list.
    uint32_t block;       ///< Pool block.
    uint32_t row_in_block;
  };

  __device__ RowFinder(Context<Spec>& c, uint32_t pull_warp) : c_(c), cells_(c.shared.cells[pull_warp]) {
    load_cells();
  }

  /// By the whole warp; every lane gets the row.
  __device__ __forceinline__ Row find(uint32_t row) {
    while (row - first_row_ >= cells_.end[31]) {
      first_row_ += cells_.end[31];
      first_cell_ += 32;
      load_cells();
    }
    const uint32_t offset = row - first_row_;
    const uint32_t at = __ffs(__ballot_sync(kFullWarp, offset < cells_.end[c_.lane()])) - 1;
    const uint32_t index = offset - cells_.begin[at], cell = first_cell_ + at;
    const uint32_t num_ranks = c_.view().spec.num_ranks;
    constexpr protocol::BlockCut kCut = Spec::kSpec.cut();
    const uint32_t row_in_expert = cells_.row_in_expert[at] + index;
    const uint32_t block = kCut.block_of(row_in_expert, cells_.expert_blocks[at]);
    return {protocol::nth_source(c_.view().rank, cell % num_ranks, num_ranks), cells_.list_first[at] + index,
            cells_.expert_block[at] + block, row_in_expert - block * kCut.block_m};
  }

 private:
  __device__ __forceinline__ void load_cells() {
    const uint32_t num_ranks = c_.view().spec.num_ranks, local = c_.view().spec.local_experts();
    const uint32_t lane = c_.lane(), cell = first_cell_ + lane, expert = cell / num_ranks;
    uint32_t count = 0;
    __syncwarp();
    if (expert < local) {
      const uint64_t at = uint64_t{protocol::nth_source(c_.view().rank, cell % num_ranks, num_ranks)} * local + expert;
      const protocol::SlotRange range = c_.own_bank(c_.layout().slot_ranges)[at];
      count = range.num_rows;
      cells_.list_first[lane] = range.first;
      cells_.row_in_expert[lane] = c_.own(c_.layout().source_first_row)[at];
      const uint32_t* first_block = c_.own(c_.layout().expert_first_block) + expert;
      cells_.expert_block[lane] = first_block[0];
      cells_.expert_blocks[lane] = first_block[1] - first_block[0];
    }
    uint32_t end = count;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(kFullWarp, end, step);
      if (lane >= step) end += left;
    }
    cells_.begin[lane] = end - count;
    cells_.end[lane] = end;
    __syncwarp();
  }

  Context<Spec>& c_;
  PullCells& cells_;
  uint32_t first_cell_ = 0;
  uint32_t first_row_ = 0;  ///< Rows of all cells before the first one.
};

/// Copies rows piece by piece through a ring of buffers: some pieces are on their way in while earlier ones are on
/// their way out. Used by one lane.
template <class Spec>
class PiecePipe {
 public:
  __device__ PiecePipe(Context<Spec>& c, uint32_t pull_warp) : c_(c), pull_warp_(pull_warp) {}

  /// Starts copying; complete() awaits it.
  __device__ __forceinline__ bool copy(uint8_t* dst, const uint8_t* src, uint32_t bytes) {
    const uint32_t num_pieces = core::ceil_div(bytes, kBufferBytes);
    const uint32_t piece = core::align_up(core::ceil_div(bytes, num_pieces), 16u);
    bool ok = true;
    for (uint32_t at = 0; at < bytes; at += piece) ok = start(dst + at, src + at, core::min(piece, bytes - at)) && ok;
    return ok;
  }
  /// Returns when everything is written.
  __device__ __forceinline__ bool complete() {
    bool ok = true;
    while (sent_ != started_) ok = send() && ok;
    ptx::bulk_wait_written();
    return ok;
  }

 private:
  static constexpr uint32_t kBuffers = Spec::kSpec.num_pull_buffers, kBufferBytes = Spec::kSpec.pull_buffer_bytes;

  __device__ __forceinline__ bool start(uint8_t* dst, const uint8_t* src, uint32_t bytes) {
    bool ok = true;
    while (started_ - sent_ >= kBuffers - 1) ok = send() && ok;
    // The buffer's last piece was sent kBuffers pieces ago; at least one newer piece has been sent since.
    ptx::bulk_wait_read<1>();
    const uint32_t buffer = started_ % kBuffers, barrier = ptx::shared_address(&c_.shared.pulled[pull_warp_][buffer]);
    c_.shared.pieces[pull_warp_][buffer] = {dst, bytes};
    c_.chaos();
    ptx::mbarrier_arrive_expect(barrier, bytes);
    ptx::bulk_load(ptx::shared_address(c_.shared.pull[pull_warp_][buffer]), src, bytes, barrier);
    ++started_;
    return ok;
  }
  /// Awaits the oldest piece on its way in and sends it on.
  __device__ __forceinline__ bool send() {
    const uint32_t buffer = sent_ % kBuffers, parity = sent_ / kBuffers & 1;
    ++sent_;
    if (!wait_barrier_alone(c_, ptx::shared_address(&c_.shared.pulled[pull_warp_][buffer]), parity, Role::kDispatch))
      return false;
    const PieceNote piece = c_.shared.pieces[pull_warp_][buffer];
    ptx::bulk_store(piece.dst, ptx::shared_address(c_.shared.pull[pull_warp_][buffer]),
                    static_cast<uint32_t>(piece.bytes));
    ptx::bulk_commit();
    return true;
  }

  Context<Spec>& c_;
  const uint32_t pull_warp_;
  uint32_t started_ = 0;  ///< Pieces.
  uint32_t sent_ = 0;
};

/// Where a source's tokens lie.
struct TokenRows {
  const uint8_t* codes;
  uint64_t row_stride;
  const void* scales;
  uint64_t scale_row_stride;
  uint64_t scale_group_stride;
  bool scales_are_ue8m0;

  template <class Spec>
  __device__ static __forceinline__ TokenRows of(Context<Spec>& c, uint32_t source) {
    const protocol::RankView& view = c.view();
    const CallTensors& t = c.args.tensors;
    if (source == view.rank && t.source == TokenSource::kReadInPlace)
      return {static_cast<const uint8_t*>(t.hidden),
              t.hidden_row_stride,
              t.scales,
              t.scale_row_stride,
              t.scale_group_stride,
              t.scales_are_ue8m0};
    return {c.peer(c.layout().input_codes, source),
            view.spec.shape.hidden,
            c.peer(c.layout().input_scales, source),
            view.spec.hidden_groups(),
            1,
            false};
  }
  __device__ __forceinline__ float scale(uint32_t token, uint32_t group) const {
    const uint64_t at = token * scale_row_stride + group * scale_group_stride;
    return scales_are_ue8m0 ? core::ue8m0_decode(static_cast<const uint8_t*>(scales)[at])
                            : __ldcg(static_cast<const float*>(scales) + at);
  }
};

/// A run of consecutive rows; lane i knows row i.
struct PullRun {
  uint32_t count = 0;  ///< The same in all lanes.
  uint32_t source = 0;
  uint32_t block = 0;
  uint32_t row_in_block = 0;
  uint32_t token_slot = 0;
};

/// Looks the rows up, and writes their metadata. Their entries in the sources' slot lists are loaded together.
template <class Spec>
__device__ __forceinline__ PullRun find_run(Context<Spec>& c, RowFinder<Spec>& finder, uint32_t first, uint32_t count) {
  const uint32_t lane = c.lane();
  PullRun run;
  run.count = count;
  uint32_t list_index = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto row = finder.find(first + i);
    if (lane != i) continue;
    run.source = row.source;
    run.block = row.block;
    run.row_in_block = row.row_in_block;
    list_index = row.list_index;
  }
  __syncwarp();
  if (lane < count) {
    const uint2 entry = __ldcg(reinterpret_cast<const uint2*>(c.peer(c.layout().slot_list, run.source) + list_index));
    run.token_slot = entry.x;
    c.own(c.layout().row_meta)[uint64_t{run.block} * Spec::kSpec.room_m() + run.row_in_block] = {
        static_cast<uint16_t>(run.source), static_cast<uint16_t>(run.source), entry.x, __uint_as_float(entry.y)};
  }
  return run;
}

/// Waits until the rows may be read and their places in the pool may be written. Acquires acts_full (pairs with
/// finish_tile: the last readers of the ring slot's earlier block are done), and input_full (pairs with fill_input of
/// the source). A run never spans as many blocks as the ring has slots, so no row waits for another one of its run.
template <class Spec>
__device__ __forceinline__ bool wait_run(Context<Spec>& c, const PullRun& run) {
  const protocol::RankView& view = c.view();
  const protocol::BlockRing ring = view.token_ring();
  const bool has_row = c.lane() < run.count;
  if (__any_sync(kFullWarp, has_row && ring.has_previous(run.block))) {
    const bool waits = has_row && ring.has_previous(run.block);
    const uint32_t previous = waits ? ring.previous(run.block) : 0, num_tiles = view.schedule.num_l1_tiles;
    const uint32_t* counter = c.own_bank(c.layout().acts_full) + previous;
    if (!wait_warp(c, {Signal::kActsFull, Role::kDispatch, previous, num_tiles}, [&](uint64_t& seen) {
          if (!waits) return true;
          seen = ptx::load_acquire_gpu(counter);
          return seen >= num_tiles;
        }))
      return false;
  }
  if (view.spec.num_ranks == 1 && c.args.tensors.source == TokenSource::kReadInPlace) return true;
  const uint32_t input_block = run.token_slot / view.spec.shape.top_k / protocol::WorkspaceSpec::kInputBlockTokens;
  const uint32_t epoch = c.epoch();
  const bool waits =
      has_row && (ptx::load_acquire_sys(c.own_bank(c.layout().header) + run.source) & protocol::kHeaderInputReady) == 0;
  const uint32_t* full = c.peer(c.layout().input_full, run.source) + input_block;
  const auto is_full = [&](uint64_t& seen) {
    if (!waits) return true;
    seen = ptx::load_acquire_sys(full);
    return seen == epoch;
  };
  if (wait_warp(c, {Signal::kInputFull, Role::kDispatch, input_block, epoch}, is_full)) return true;
  uint64_t seen = 0;
  if (!is_full(seen)) blame(c.shared, run.source);
  return false;
}

/// Copies the rows and their scales, and counts them. Order: tokens_full is released at rank scope
/// after the bulk copies (which lane 0 waited for) and after the stores of all lanes; pairs with wait_tile_inputs in
/// roles/load.
template <class Spec>
__device__ __forceinline__ bool pull_run(Context<Spec>& c, PiecePipe<Spec>& pipe, const PullRun& run) {
  const protocol::WorkspaceSpec& spec = c.view().spec;
  const uint32_t hidden = spec.shape.hidden, groups = spec.hidden_groups();
  constexpr uint32_t kRoomM = Spec::kSpec.room_m();
  const uint32_t lane = c.lane(), token = run.token_slot / spec.shape.top_k;
  const uint32_t ring_slot = c.view().token_ring().slot(run.block);
  // Rows that the call itself wrote come from ordinary stores; acquired in wait_run.
  if (spec.num_ranks > 1 || c.args.tensors.source != TokenSource::kReadInPlace) ptx::proxy_fence();
  bool ok = true;
  for (uint32_t i = 0; i < run.count; ++i) {
    const uint32_t row_token = __shfl_sync(kFullWarp, token, i);
    const uint32_t slot = __shfl_sync(kFullWarp, ring_slot, i), row = __shfl_sync(kFullWarp, run.row_in_block, i);
    const TokenRows rows = TokenRows::of(c, __shfl_sync(kFullWarp, run.source, i));
    if (lane == 0)
      ok = pipe.copy(c.own(c.layout().pool_codes) + (uint64_t{slot} * kRoomM + row) * hidden,
                     rows.codes + row_token * rows.row_stride, hidden) &&
           ok;
    __syncwarp();
    float* to = c.own(c.layout().pool_scales) + uint64_t{slot} * groups * kRoomM + row;
    for (uint32_t group = lane; group < groups; group += 32)
      to[uint64_t{group} * kRoomM] = rows.scale(row_token, group);
  }
  if (lane == 0) ok = pipe.complete() && ok;
  ptx::proxy_fence();  // scales are read by bulk copies
  __syncwarp();
  ok = __all_sync(kFullWarp, ok);
  c.chaos();
  // The first row of each block counts for all of them.
  const uint32_t same = __match_any_sync(kFullWarp, lane < run.count ? run.block : UINT32_MAX);
  if (ok && lane < run.count && static_cast<uint32_t>(__ffs(same)) - 1 == lane)
    ptx::add_release_gpu(c.own_bank(c.layout().tokens_full) + run.block, __popc(same));
  return ok;
}

/// Pulls this warp's share: runs of rows are dealt to all dispatch warps of the grid in turn, so that early blocks fill
/// first; runs of one where there are few rows.
template <class Spec>
__device__ __forceinline__ bool pull_rows(Context<Spec>& c, uint32_t pull_warp) {
  constexpr uint32_t kMaxRun = 8;
  if (gathers_rows(c)) return true;
  const protocol::PoolPlan plan = c.pool_plan();
  const uint32_t num_warps = gridDim.x * SharedStorage<Spec>::kPullWarps;
  RowFinder<Spec> finder(c, pull_warp);
  uint32_t num_rows = 0;
  for (uint32_t expert = c.lane(); expert < plan.local_experts; expert += 32) num_rows += plan.expert_num_rows[expert];
  num_rows = __reduce_add_sync(kFullWarp, num_rows);
  const uint32_t most = core::min(kMaxRun, core::max(1u, c.view().token_ring().num_slots - 1));
  const uint32_t longest = core::max(1u, core::min(num_rows / (num_warps * 4), most));

  PiecePipe<Spec> pipe(c, pull_warp);
  __syncwarp();
  // Rounds of 1, 2, 4, ... rows a warp: the first blocks fill soon, and later rows share the cost of counting them.
  uint32_t round_begin = 0;
  for (uint32_t run = 1; round_begin < num_rows; run = core::min(2 * run, longest)) {
    const uint32_t first = round_begin + (pull_warp * gridDim.x + blockIdx.x) * run;
    round_begin += num_warps * run;
    if (first >= num_rows) continue;
    const PullRun rows = find_run(c, finder, first, core::min(run, num_rows - first));
    if (!wait_run(c, rows)) return false;
    c.trace(protocol::Event::kPullRow, false, first);
    if (!pull_run(c, pipe, rows)) return false;
    c.trace(protocol::Event::kPullRow, true, first);
  }
  return true;
}

}  // namespace megamoe::sm90
