// The load role: one warp walks the schedule and streams weights with their scales; one follows it and streams token
// rows (or activations) with theirs, as soon as they are there.
#pragma once

#include "backends/sm90/roles/dispatch.cuh"
#include "backends/sm90/roles/few_slots.cuh"
#include "backends/sm90/tile_form.h"
#include "protocol/ring.h"
#include "protocol/schedule.h"

namespace megamoe::sm90 {

using protocol::RingState;

/// Which weights a tile multiplies: routed or shared experts have their own tensors and count from zero.
struct TileExpert {
  bool is_shared;
  uint32_t expert;

  template <class Spec>
  __device__ static __forceinline__ TileExpert of(const Context<Spec>& c, const TileNote& tile) {
    const uint32_t first_shared = c.args.weight_scales.first_shared;
    const bool is_shared = tile.local_expert >= first_shared;
    return {is_shared, tile.local_expert - (is_shared ? first_shared : 0)};
  }
};

/// Weight scales of up to 32 k-blocks of a tile, one k-block a lane: of the tile's even and odd groups of 8 columns
/// (gate and up, first GEMM), or of its first and second 128 columns.
struct ScalePair {
  float first = 0;
  float second = 0;
};

template <class Spec>
__device__ __forceinline__ ScalePair load_weight_scales(Context<Spec>& c, const TileNote& tile, uint32_t k_base) {
  const protocol::WorkspaceSpec& spec = c.view().spec;
  const bool is_l1 = tile.kind == kNoteL1;
  const uint32_t k_blocks = is_l1 ? spec.hidden_groups() : spec.intermediate_groups();
  const uint32_t k = k_base + c.lane();
  if (k >= k_blocks) return {};
  const uint32_t row_blocks = is_l1 ? spec.intermediate_groups() : spec.hidden_groups();
  const WeightScales& all = c.args.weight_scales;
  const auto [is_shared, expert] = TileExpert::of(c, tile);
  const float* scales = is_l1 ? (is_shared ? all.shared.w13 : all.routed.w13)  //
                              : (is_shared ? all.shared.w2 : all.routed.w2);
  const uint64_t expert_rows = uint64_t{expert} * row_blocks * (is_l1 ? 2 : 1);
  const uint64_t first = expert_rows + (is_l1 ? tile.n : 2 * tile.n);
  const uint64_t second = first + (is_l1 ? row_blocks : 1);
  const bool has_second = is_l1 || 2 * tile.n + 1 < row_blocks;
  return {__ldg(scales + first * k_blocks + k), has_second ? __ldg(scales + second * k_blocks + k) : 0.0f};
}

/// The rows of 32 consecutive experts in the lanes of the warp: the plan lies in another SM's reach, and a walk over
/// it expert by expert would wait for each. Of few slots, what the warp sees of them.
/// @tparam kMayBeFew  whether the kernel knows FewSlots
template <bool kMayBeFew>
class WarpRows {
 public:
  __device__ WarpRows(const uint32_t* num_rows, uint32_t local_experts)
      : num_rows_(num_rows), local_experts_(local_experts) {}
  __device__ explicit WarpRows(const FewSlots& few) : few_(few), is_few_(true) {}

  /// By the whole warp, with the same expert.
  __device__ __forceinline__ uint32_t operator()(uint32_t local_expert) {
    if (kMayBeFew && is_few_) return few_.num_rows(local_expert);
    if (local_expert / 32 != window_) {
      window_ = local_expert / 32;
      const uint32_t mine = window_ * 32 + ptx::lane_index();
      lane_rows_ = mine < local_experts_ ? num_rows_[mine] : 0;
    }
    return __shfl_sync(kFullWarp, lane_rows_, local_expert % 32);
  }

 private:
  const uint32_t* num_rows_ = nullptr;
  uint32_t local_experts_ = 0;
  uint32_t window_ = UINT32_MAX;
  uint32_t lane_rows_ = 0;
  FewSlots few_;
  bool is_few_ = false;
};
template <class Spec>
using RowsOf = WarpRows<Spec::kSpec.gathers_rows>;

/// The tile with this number, as the other roles get it.
/// @param sharers  as in protocol::Tile
template <class Rows>
__device__ __forceinline__ TileNote note_of(protocol::ScheduleWalk<Rows>& schedule, uint32_t ticket,
                                            uint32_t& sharers) {
  protocol::Tile tile;
  if (!schedule.at(ticket, tile)) return {kNoteEnd, 0, 0, 0, 0};
  sharers = tile.sharers;
  return {tile.phase == protocol::Phase::kL1 ? kNoteL1 : kNoteL2, static_cast<uint16_t>(tile.local_expert), tile.block,
          tile.n, tile.num_rows};
}

/// Tells the CTA's other roles which tile comes next. Order: note_full; pairs with read_note.
template <class Spec>
__device__ __forceinline__ bool announce(Context<Spec>& c, RingState& slot, const TileNote& tile) {
  const bool ok = wait_barrier(c, ptx::shared_address(&c.shared.note_empty[slot.index]), slot.phase, Role::kLoad);
  if (ok && c.lane() == 0) {
    c.shared.notes[slot.index] = tile;
    c.chaos();
    ptx::mbarrier_arrive(ptx::shared_address(&c.shared.note_full[slot.index]));
  }
  __syncwarp();
  slot.advance(Spec::kSpec.num_tile_slots);
  return ok;
}

/// Starts copying the weights of one k-block. Weights that one tile alone reads leave the cache first: 0.4% at 1,024
/// tokens; on weights that several tiles share, even a hint for the normal policy costs 1%.
template <class Spec>
__device__ __forceinline__ void copy_weights(Context<Spec>& c, const TileNote& tile, const TileExpert& weights,
                                             bool is_read_once, uint32_t k, uint32_t to, uint32_t full) {
  const auto& maps = c.args.maps;
  const uint32_t column = k * 128;
  if (tile.kind == kNoteL1) {
    const CUtensorMap& map = weights.is_shared ? maps.shared_w13 : maps.w13;
    if (is_read_once) {
      ptx::tma_load_5d(map, to, full, column, 0, 0, tile.n * 16, weights.expert, ptx::evict_first());
    } else {
      ptx::tma_load_5d(map, to, full, column, 0, 0, tile.n * 16, weights.expert);
    }
  } else {
    const CUtensorMap& map = weights.is_shared ? maps.shared_w2 : maps.w2;
    const uint32_t row = tile.n * Spec::kSpec.tile_n;
    if (is_read_once) {
      ptx::tma_load_3d(map, to, full, column, row, weights.expert, ptx::evict_first());
    } else {
      ptx::tma_load_3d(map, to, full, column, row, weights.expert);
    }
  }
}

/// Weights: takes tiles by ticket. A ticket is drawn just early enough not to be waited for: blocks of one expert that
/// share a weight tile have consecutive tickets, and only where their CTAs also start at about the same time is the
/// weight tile read from memory once. Never waits on token data.
template <class Spec>
__device__ __forceinline__ void load_weights(Context<Spec>& c) {
  constexpr uint32_t kStages = Spec::kSpec.num_stages, kTileBytes = Spec::kSpec.tile_n * 128;
  const protocol::RankView& view = c.view();
  RingState slot = RingState::producer_start(), stage = RingState::producer_start();
  uint32_t* tickets = c.own_bank(c.layout().tickets) + protocol::kTileTicketIndex;
  const auto take_ticket = [&] {
    return __shfl_sync(kFullWarp, c.lane() == 0 ? ptx::add_relaxed_gpu(tickets, 1) : 0, 0);
  };
  const uint32_t first_ticket = take_ticket();
  const bool is_few = FewSlots::fit(c);
  if (!is_few && !wait_plan(c, Role::kLoad)) {
    announce(c, slot, {kNoteEnd, 0, 0, 0, 0});
    return;
  }
  c.trace(protocol::Event::kWaitPlan, true);
  const protocol::PoolPlan plan = c.pool_plan();
  using Rows = RowsOf<Spec>;
  protocol::ScheduleWalk<Rows> schedule(
      view.schedule, plan.local_experts, Spec::kSpec.cut(),
      is_few ? Rows(FewSlots::read(c)) : Rows(plan.expert_num_rows, plan.local_experts));
  constexpr uint32_t kTicketAhead = 5, kScalesAhead = 3;  // k-blocks before the next tile
  uint32_t sharers = 1, next_sharers = 1;
  TileNote tile = note_of(schedule, first_ticket, sharers);
  ScalePair scales = tile.kind == kNoteEnd ? ScalePair{} : load_weight_scales(c, tile, 0);

  while (tile.kind != kNoteEnd && !has_failed(c.shared)) {
    if (!announce(c, slot, tile)) return;
    const uint32_t k_blocks = tile.kind == kNoteL1 ? view.spec.hidden_groups() : view.spec.intermediate_groups();
    const uint32_t ticket_k = k_blocks - core::min(k_blocks, kTicketAhead);
    const uint32_t scales_k = k_blocks - core::min(k_blocks, kScalesAhead);
    const TileExpert weights = TileExpert::of(c, tile);
    TileNote next{};
    ScalePair next_scales;
    uint32_t next_ticket = 0;
    for (uint32_t k = 0; k < k_blocks; ++k) {
      const float first = __shfl_sync(kFullWarp, scales.first, k % 32);
      const float second = __shfl_sync(kFullWarp, scales.second, k % 32);
      if (!wait_barrier(c, ptx::shared_address(&c.shared.stage_empty[stage.index]), stage.phase, Role::kLoad)) return;
      if (c.lane() == 0) {
        // The copy first: bytes may arrive before they are announced, the phase still waits for this arrival.
        const uint32_t full = ptx::shared_address(&c.shared.stage_full[stage.index]);
        copy_weights(c, tile, weights, sharers == 1, k, ptx::shared_address(c.shared.stages[stage.index].weights),
                     full);
        c.shared.weight_scales[stage.index] = tile.kind == kNoteL1 ? float4{first, second, first, second}  //
                                                                   : float4{first, first, second, second};
        c.chaos();
        ptx::mbarrier_arrive_expect(full, kTileBytes);
      }
      __syncwarp();
      stage.advance(kStages);
      if (k == ticket_k && c.lane() == 0) next_ticket = ptx::add_relaxed_gpu(tickets, 1);
      if (k == scales_k) {
        next = note_of(schedule, __shfl_sync(kFullWarp, next_ticket, 0), next_sharers);
        if (next.kind != kNoteEnd) next_scales = load_weight_scales(c, next, 0);
      }
      if (k % 32 == 31) scales = load_weight_scales(c, tile, k + 1);
    }
    tile = next;
    scales = next_scales;
    sharers = next_sharers;
  }
  announce(c, slot, {kNoteEnd, 0, 0, 0, 0});
}

/// The tile in a slot that is known to be full.
template <class Spec>
__device__ __forceinline__ TileNote note_at(Context<Spec>& c, uint32_t slot) {
  const uint4 raw = ptx::load_shared_16(ptx::shared_address(&c.shared.notes[slot]));
  return {static_cast<uint16_t>(raw.x), static_cast<uint16_t>(raw.x >> 16), raw.y, raw.z, raw.w};
}

/// Waits for the tile at the head of the ring of notes. Pairs with announce.
template <class Spec>
__device__ __forceinline__ bool read_note(Context<Spec>& c, const RingState& slot, Role role, TileNote& tile) {
  if (!wait_barrier(c, ptx::shared_address(&c.shared.note_full[slot.index]), slot.phase, role)) return false;
  tile = note_at(c, slot.index);
  return true;
}

/// Waits until the rows that a tile multiplies are there. First GEMM: its tokens have arrived (pairs with
/// publish_rows), and the block that held its slot of the activation ring has left. Second GEMM: all first-GEMM tiles
/// of its block are stored. The latter two pair with finish_tile in roles/store.
template <class Spec>
__device__ __forceinline__ bool wait_tile_inputs(Context<Spec>& c, const TileNote& tile) {
  const protocol::RankView& view = c.view();
  const auto reaches = [&](Signal signal, uint32_t* counter, uint32_t index, uint32_t expected) {
    return wait_warp(c, {signal, Role::kLoad, index, expected}, [&](uint64_t& seen) {
      seen = ptx::load_acquire_gpu(counter + index);
      return seen >= expected;
    });
  };
  if (tile.kind == kNoteL2)
    return reaches(Signal::kActsFull, c.own_bank(c.layout().acts_full), tile.block, view.schedule.num_l1_tiles);
  const protocol::BlockRing ring = view.act_ring();
  if (ring.has_previous(tile.block) && !reaches(Signal::kActsEmpty, c.own_bank(c.layout().acts_empty),
                                                ring.previous(tile.block), view.schedule.num_l2_tiles))
    return false;
  if (gathers_rows(c)) return true;
  return reaches(Signal::kTokensFull, c.own_bank(c.layout().tokens_full), tile.block, tile.num_rows);
}

/// Visits the rows of a tile in the sorted slot list: visit(row, token_slot, weight), one a lane.
template <class Spec, class Visit>
__device__ __forceinline__ void find_sorted_rows(Context<Spec>& c, const TileNote& tile, uint32_t num_rows,
                                                 Visit visit) {
  const uint32_t block_in_expert = tile.block - c.pool_plan().expert_first_block[tile.local_expert];
  const protocol::SlotEntry* list = c.own(c.layout().slot_list) +
                                    c.own_bank(c.layout().slot_ranges)[tile.local_expert].first +
                                    block_in_expert * Spec::kSpec.block_m;
  for (uint32_t row = c.lane(); row < num_rows; row += 32) {
    const uint2 entry = __ldcg(reinterpret_cast<const uint2*>(list + row));
    visit(row, entry.x, __uint_as_float(entry.y));
  }
}

/// Looks up the rows of a tile of this rank's own tokens, and leaves their metadata for the other roles: every column
/// tile of a block does, with the same values, since the way over the dispatch warps takes 8 us. What it reads came
/// with the plan, which load_weights acquired before it announced the tile; few slots it has itself. Order: acquires
/// input_full of all tokens, one input block a lane, where the call fills them in; pairs with fill_input.
template <class Spec>
__device__ __forceinline__ bool find_rows(Context<Spec>& c, const TileNote& tile, uint32_t num_rows,
                                          const FewSlots& few) {
  const uint32_t rank = c.view().rank, top_k = c.view().spec.shape.top_k;
  protocol::RowMeta* meta = c.own(c.layout().row_meta) + uint64_t{tile.block} * Spec::kSpec.room_m();
  const auto note_row = [&](uint32_t row, uint32_t token_slot, float weight) {
    c.shared.gathered_tokens[row] = token_slot / top_k;
    meta[row] = {static_cast<uint16_t>(rank), static_cast<uint16_t>(rank), token_slot, weight};
  };
  if (FewSlots::fit(c)) {
    few.for_each_row(tile.local_expert, c.lane(), note_row);
  } else {
    find_sorted_rows(c, tile, num_rows, note_row);
  }
  __syncwarp();
  if (c.args.tensors.source == TokenSource::kReadInPlace) return true;
  const bool waits = c.lane() * protocol::WorkspaceSpec::kInputBlockTokens < c.args.tensors.num_tokens;
  const uint32_t *full = c.own(c.layout().input_full) + (waits ? c.lane() : 0), epoch = c.epoch();
  return wait_warp(c, {Signal::kInputFull, Role::kLoad, c.lane(), epoch}, [&](uint64_t& seen) {
    if (!waits) return true;
    seen = ptx::load_acquire_sys(full);
    return seen == epoch;
  });
}

/// Token rows of one tile from where they lie: 16-byte copies to the places that a tensor copy with 128-byte swizzle
/// would choose. The rows were there before the call.
template <class Spec>
__device__ __forceinline__ bool gather_rows(Context<Spec>& c, const TileNote& tile, RingState& stage, bool ok,
                                            const FewSlots& few) {
  // Announced one k-block behind: with as many as stages less one, a k-block would be announced only when the one
  // before it has been multiplied, and no weights could wait there (3% at one token of the pro slice).
  constexpr uint32_t kStages = Spec::kSpec.num_stages, kBehind = 1;
  const protocol::RankView& view = c.view();
  const uint32_t lane = c.lane(), k_blocks = view.spec.hidden_groups();
  const uint32_t num_rows = ok && find_rows(c, tile, tile.num_rows, few) ? tile.num_rows : 0;
  const TokenRows rows = TokenRows::of(c, view.rank);
  RingState filled = stage;
  for (uint32_t k = 0; k < k_blocks + kBehind; ++k) {
    if (k < k_blocks) {
      if (!wait_barrier(c, ptx::shared_address(&c.shared.stage_empty[stage.index]), stage.phase, Role::kLoad))
        return false;
      const uint32_t to = ptx::shared_address(c.shared.stages[stage.index].tokens);
      for (uint32_t row = lane / 8; row < num_rows; row += 4)
        ptx::copy_16(to + row * 128 + (lane % 8 ^ row % 8) * 16,
                     rows.codes + c.shared.gathered_tokens[row] * rows.row_stride + k * 128 + lane % 8 * 16);
      for (uint32_t row = lane; row < num_rows; row += 32)
        ptx::copy_4(ptx::shared_address(&c.shared.token_scales[stage.index][row]),
                    static_cast<const float*>(rows.scales) + c.shared.gathered_tokens[row] * rows.scale_row_stride +
                        k * rows.scale_group_stride);
      stage.advance(kStages);
    }
    ptx::commit_copies();
    if (k < kBehind) continue;
    ptx::wait_copy_groups<kBehind>();
    ptx::proxy_fence_shared();  // read by multiplies
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&c.shared.stage_full[filled.index]));
    filled.advance(kStages);
  }
  return true;
}

/// Token rows. After a failure it still completes the stages of the tiles that were announced, with whatever lies
/// there: the math warps stay together, and store nothing that anybody is told of.
template <class Spec>
__device__ __forceinline__ void load_tokens(Context<Spec>& c) {
  constexpr uint32_t kStages = Spec::kSpec.num_stages, kRoomM = Spec::kSpec.room_m();
  const protocol::RankView& view = c.view();
  RingState slot, stage = RingState::producer_start();
  TileNote tile;
  FewSlots few{};
  if (FewSlots::fit(c)) few = FewSlots::read(c);
  while (read_note(c, slot, Role::kLoad, tile) && tile.kind != kNoteEnd) {
    __syncwarp();
    c.chaos();
    if (c.lane() == 0) ptx::mbarrier_arrive(ptx::shared_address(&c.shared.note_empty[slot.index]));
    slot.advance(Spec::kSpec.num_tile_slots);
    const protocol::Event wait_event = tile.kind == kNoteL1 ? protocol::Event::kWaitTokens : protocol::Event::kWaitActs;
    c.trace(wait_event, false, tile.block);
    const bool ok = !has_failed(c.shared) && wait_tile_inputs(c, tile);
    c.trace(wait_event, true, tile.block);
    ptx::proxy_fence();  // what was acquired is read by bulk copies from here on
    const bool is_l1 = tile.kind == kNoteL1;
    if constexpr (Spec::kSpec.gathers_rows) {
      if (is_l1 && gathers_rows(c)) {
        if (!gather_rows(c, tile, stage, ok, few)) return;
        continue;
      }
    }
    const uint32_t k_blocks = is_l1 ? view.spec.hidden_groups() : view.spec.intermediate_groups();
    const uint32_t ring_slot = is_l1 ? view.token_ring().slot(tile.block) : view.act_ring().slot(tile.block);
    const TileForm form = TileForm::of<Spec>(tile.num_rows);
    const bool half = form.is_split<Spec>();
    const uint32_t rows = form.main_rows + (form.has_extra ? Spec::kSpec.extra_m : 0);
    const CUtensorMap& map =
        is_l1 ? (half ? c.args.maps.pool_half : c.args.maps.pool) : (half ? c.args.maps.acts_half : c.args.maps.acts);
    const CUtensorMap& extra_map = is_l1 ? c.args.maps.pool_extra : c.args.maps.acts_extra;
    const float* scales = (is_l1 ? c.own(c.layout().pool_scales) : c.own(c.layout().act_scales)) +
                          uint64_t{ring_slot} * k_blocks * kRoomM;
    for (uint32_t k = 0; k < k_blocks; ++k) {
      const uint32_t full = ptx::shared_address(&c.shared.stage_full[stage.index]);
      if (!wait_barrier(c, ptx::shared_address(&c.shared.stage_empty[stage.index]), stage.phase, Role::kLoad)) return;
      if (c.lane() == 0) {
        c.chaos();
        if (ok) {
          const uint32_t to = ptx::shared_address(c.shared.stages[stage.index].tokens);
          ptx::tma_load_2d(map, to, full, k * 128, ring_slot * kRoomM);
          if (form.has_extra)
            ptx::tma_load_2d(extra_map, to + form.main_rows * 128, full, k * 128, ring_slot * kRoomM + form.main_rows);
          ptx::bulk_load(ptx::shared_address(c.shared.token_scales[stage.index]), scales + uint64_t{k} * kRoomM,
                         rows * 4, full);
          ptx::mbarrier_arrive_expect(full, rows * 128 + rows * 4);
        } else {
          ptx::mbarrier_arrive(full);
        }
      }
      __syncwarp();
      stage.advance(kStages);
    }
  }
}

}  // namespace megamoe::sm90
