// The dispatch role: publish this rank's counts, learn everybody's, plan the pool, pull the rows of this rank's
// experts.
#pragma once

#include "protocol/wait.h"

namespace megamoe::protocol {

/// This rank's slots, sorted by expert. `ranges` cover all experts of the layer; owner r gets its own part.
struct SlotSort {
  const SlotRange* ranges;  // [num_experts]
  Refusal refusal;          // kind == kNone unless this rank refuses the call
};

/// Counting sort of the slots into the rank's slot list: by expert, then token, then slot. Masked slots (-1) are left
/// out and their weights never read. Stops at the first id that is neither -1 nor an expert.
/// @param ids      [num_tokens][top_k], read through `id_at(token, slot)`
/// @param ranges   out, [num_experts]
template <class IdAt, class WeightAt>
inline Refusal sort_slots(const RankView& view, uint32_t num_tokens, IdAt id_at, WeightAt weight_at,
                          SlotRange* ranges) {
  const uint32_t num_experts = view.spec.shape.num_experts, top_k = view.spec.shape.top_k;
  for (uint32_t expert = 0; expert < num_experts; ++expert) ranges[expert] = {0, 0};
  for (uint32_t token = 0; token < num_tokens; ++token) {
    for (uint32_t slot = 0; slot < top_k; ++slot) {
      const int64_t id = id_at(token, slot);
      if (id == -1) continue;
      if (id < 0 || id >= int64_t{num_experts}) {
        Refusal refusal;
        refusal.kind = RefusalKind::kIdOutOfRange;
        refusal.token = token;
        refusal.slot = slot;
        refusal.value = id;
        refusal.limit = num_experts;
        return refusal;
      }
      ++ranges[id].num_rows;
    }
  }
  for (uint32_t expert = 0, first = 0; expert < num_experts; ++expert) {
    ranges[expert].first = first;
    first += ranges[expert].num_rows;
    ranges[expert].num_rows = 0;  // counted again while placing
  }
  SlotEntry* list = view.layout.slot_list.in(view.own());
  for (uint32_t token = 0; token < num_tokens; ++token) {
    for (uint32_t slot = 0; slot < top_k; ++slot) {
      const int64_t id = id_at(token, slot);
      if (id == -1) continue;
      SlotRange& range = ranges[id];
      list[range.first + range.num_rows++] = {token * top_k + slot, weight_at(token, slot)};
    }
  }
  return {};
}

/// Writes counts (or the refusal) into every present owner's workspace, then the header.
/// Order: header is released at system scope, publishing the slot list, the ranges and the refusal; pairs with
/// wait_headers.
template <Machine M>
MEGAMOE_HD void publish_header(M& m, const RankView& view, const Call& call, const SlotSort& sort, uint64_t flags) {
  const uint32_t local = view.spec.local_experts();
  const Banks own(view, call.bank());
  const bool refused = sort.refusal.kind != RefusalKind::kNone;
  for (uint32_t n = 0; n < view.spec.num_ranks; ++n) {
    const uint32_t owner = nth_source(view.rank, n, view.spec.num_ranks);
    if (call.absent.contains(owner)) continue;
    if (refused) {
      m.copy(view.map(own.refusal + view.rank, owner), &sort.refusal, sizeof(Refusal));
    } else {
      m.copy(view.map(own.slot_ranges + uint64_t{view.rank} * local, owner), sort.ranges + uint64_t{owner} * local,
             uint64_t{local} * sizeof(SlotRange));
    }
    m.template store_release<Signal::kHeader>(view.map(own.header + view.rank, owner),
                                              header_value(call.epoch, flags | (refused ? kHeaderRefused : 0)));
  }
}

/// Waits until every present rank's header of this call is here.
/// @param refused  out: ranks that refuse the call
template <Machine M>
MEGAMOE_HD WaitResult wait_headers(M& m, const RankView& view, const Call& call, RankSet& refused) {
  const Banks own(view, call.bank());
  const auto arrived = [&](uint32_t source, uint64_t& seen) {
    seen = m.template load_acquire<Signal::kHeader>(own.header + source);
    return header_epoch(seen) == call.epoch;
  };
  for (uint32_t source = 0; source < view.spec.num_ranks; ++source) {
    if (call.absent.contains(source)) continue;
    const WaitSite site{Signal::kHeader, Role::kDispatch, 0, source, header_value(call.epoch, 0)};
    const WaitResult result = wait_for(
        m, view, call, site, [&](uint64_t& seen) { return arrived(source, seen); },
        [&] { return missing_headers(m, view, call); });
    if (result != WaitResult::kReady) return result;
    uint64_t seen = 0;
    arrived(source, seen);
    if ((seen & kHeaderRefused) != 0) refused.insert(source);
  }
  return WaitResult::kReady;
}

/// Makes of what absent ranks left in this bank, when they were still present, ranges of ranks that send nothing.
/// Before publish_plan; everything after it goes by the ranges alone.
inline MEGAMOE_HD void clear_absent_ranges(const RankView& view, const Call& call) {
  if (call.absent.empty()) return;
  const Banks own(view, call.bank());
  const uint32_t local = view.spec.local_experts();
  for (uint32_t source = 0; source < view.spec.num_ranks; ++source) {
    if (!call.absent.contains(source)) continue;
    for (uint32_t expert = 0; expert < local; ++expert) own.slot_ranges[uint64_t{source} * local + expert] = {0, 0};
  }
}

/// Computes the pool plan of this call and lets the other roles read it.
/// Order: plan_ready is released at rank scope; pairs with wait_plan in roles/tiles.h.
template <Machine M>
MEGAMOE_HD void publish_plan(M& m, const RankView& view, const Call& call) {
  const Banks own(view, call.bank());
  void* base = view.own();
  make_pool_plan(own.slot_ranges, view.rank, view.spec.num_ranks, view.spec.local_experts(), view.spec.cut(),
                 {view.layout.expert_first_block.in(base), view.layout.expert_num_rows.in(base),
                  view.layout.source_first_row.in(base)});
  view.layout.bank_blocks.in(base)[call.bank()] = view.pool_plan().num_blocks();
  m.template store_release<Signal::kPlanReady>(view.layout.plan_ready.in(base), call.epoch);
}

/// Copies one row, its scales and its metadata from the source into the pool.
template <Machine M>
MEGAMOE_HD void pull_row(M& m, const RankView& view, uint32_t source, const SourceCursor& at) {
  const uint32_t hidden = view.spec.shape.hidden, groups = view.spec.hidden_groups(), room_m = view.spec.room_m();
  void* own = view.own();
  void* from = view.base(source);
  const SlotEntry entry = view.layout.slot_list.in(from)[at.list_index()];
  const uint64_t token = entry.token_slot / view.spec.shape.top_k;
  const uint64_t ring_slot = view.token_ring().slot(at.block());
  const uint64_t ring_row = ring_slot * room_m + at.row_in_block();
  m.copy(view.layout.pool_codes.in(own) + ring_row * hidden, view.layout.input_codes.in(from) + token * hidden, hidden);
  const float* scales = view.layout.input_scales.in(from) + token * groups;
  float* to = view.layout.pool_scales.in(own) + ring_slot * groups * room_m + at.row_in_block();
  for (uint32_t group = 0; group < groups; ++group) to[uint64_t{group} * room_m] = scales[group];
  view.layout.row_meta.in(own)[uint64_t{at.block()} * room_m + at.row_in_block()] = {
      static_cast<uint16_t>(source), static_cast<uint16_t>(source), entry.token_slot, entry.weight};
}

/// Pulls the rows of several sources in turn, each in pool order, so that a source that is late holds up only its own
/// rows. Order: tokens_full is released at rank scope after each run of rows; pairs with wait_tokens in roles/tiles.h.
/// @param cursors  one per source, in nth_source order
template <Machine M>
MEGAMOE_HD WaitResult pull_rows(M& m, const RankView& view, const Call& call, SourceCursor* cursors) {
  constexpr uint32_t kRunRows = 16;  // rows of one source before the next source has its turn
  const Banks own(view, call.bank());
  const BlockRing ring = view.token_ring();
  const uint32_t num_ranks = view.spec.num_ranks;
  // What this wait is for, as of the last look: a late source if there is one, else room in the token ring.
  WaitSite site{Signal::kInputFull, Role::kDispatch, 0, 0, call.epoch};
  RankSet late;
  uint64_t seen = 0;

  const auto can_pull = [&](uint32_t source, const SourceCursor& at) {
    if (ring.has_previous(at.block())) {
      const uint32_t previous = ring.previous(at.block());
      const uint32_t finished = m.template load_acquire<Signal::kActsFull>(own.acts_full + previous);
      if (finished < view.schedule.num_l1_tiles) {
        if (late.empty()) {
          site.signal = Signal::kActsFull;
          site.index = previous;
          site.expected = view.schedule.num_l1_tiles;
          seen = finished;
        }
        return false;
      }
    }
    if ((m.template load_acquire<Signal::kHeader>(own.header + source) & kHeaderInputReady) != 0) return true;
    const uint32_t token =
        view.layout.slot_list.in(view.base(source))[at.list_index()].token_slot / view.spec.shape.top_k;
    const uint32_t block = token / WorkspaceSpec::kInputBlockTokens;
    const uint32_t epoch =
        m.template load_acquire<Signal::kInputFull>(view.layout.input_full.in(view.base(source)) + block);
    if (epoch == call.epoch) return true;
    site.signal = Signal::kInputFull;
    site.index = block;
    site.expected = call.epoch;
    seen = epoch;
    late.insert(source);
    return false;
  };
  const auto pull_run = [&](uint32_t source, SourceCursor& at) {
    const uint32_t block = at.block();
    uint32_t num_rows = 0;
    while (num_rows < kRunRows && !at.done() && at.block() == block && can_pull(source, at)) {
      pull_row(m, view, source, at);
      at.advance();
      ++num_rows;
    }
    if (num_rows > 0) m.template add_release<Signal::kTokensFull>(own.tokens_full + block, num_rows);
    return num_rows > 0;
  };

  bool done = false;
  const auto pull_some = [&](uint64_t& seen_last) {
    bool progress = false;
    done = true;
    late = {};
    for (uint32_t n = 0; n < num_ranks; ++n) {
      const uint32_t source = nth_source(view.rank, n, num_ranks);
      if (cursors[n].done()) continue;
      if (pull_run(source, cursors[n])) progress = true;
      if (!cursors[n].done()) done = false;
    }
    seen_last = seen;
    return progress || done;
  };
  while (!done) {
    const WaitResult result = wait_for(m, view, call, site, pull_some, [&] { return late; });
    if (result != WaitResult::kReady) return result;
  }
  return WaitResult::kReady;
}

}  // namespace megamoe::protocol
