// The dispatch role's head, run by all threads of the first CTAs before they split into roles: sort this rank's slots
// by expert (several CTAs where there are many), tell every owner, learn from every source, plan the pool (the first
// CTA).
#pragma once

#include "backends/sm90/machine.cuh"

namespace megamoe::sm90 {

/// As the caller has it.
__device__ __forceinline__ int64_t topk_id(const CallTensors& t, uint32_t token, uint32_t slot) {
  const uint64_t at = token * t.id_token_stride + slot * t.id_slot_stride;
  return t.ids_are_64_bit ? static_cast<const int64_t*>(t.topk_ids)[at]
                          : int64_t{static_cast<const int32_t*>(t.topk_ids)[at]};
}

__device__ __forceinline__ float topk_weight(const CallTensors& t, uint32_t token, uint32_t slot) {
  return t.topk_weights[token * t.weight_token_stride + slot * t.weight_slot_stride];
}

/// Where a slot goes: the expert as the protocol counts, kMaskedSlot or kBadSlot.
/// @tparam kPlain  the call has no rules of its own (CallTensors::is_plain)
template <bool kPlain, class Spec>
__device__ __forceinline__ int32_t slot_expert(Context<Spec>& c, uint32_t token, uint32_t slot) {
  const CallTensors& t = c.args.tensors;
  if constexpr (!kPlain) {
    return protocol::slot_expert(c.args.rules, token, slot,
                                 [&](uint32_t of, uint32_t at) { return topk_id(t, of, at); });
  } else {
    const int64_t id = topk_id(t, token, slot);
    return id >= -1 && id < int64_t{t.num_ids} ? static_cast<int32_t>(id) : protocol::kBadSlot;
  }
}

template <bool kPlain, class Spec>
__device__ __forceinline__ float slot_weight(Context<Spec>& c, uint32_t token, uint32_t slot) {
  const CallTensors& t = c.args.tensors;
  if constexpr (kPlain) return topk_weight(t, token, slot);
  return protocol::slot_weight(
      c.args.rules, token, slot, [&](uint32_t of, uint32_t at) { return topk_id(t, of, at); },
      [&](uint32_t of, uint32_t at) { return topk_weight(t, of, at); });
}

/// Both of slot `token_slot % top_k` of token `token_slot / top_k`. Ids and weights that lie together, as most do, are
/// reached without the division: these are the first instructions of a call, and come from memory.
template <bool kPlain, class Spec>
__device__ __forceinline__ int32_t slot_expert(Context<Spec>& c, uint32_t token_slot) {
  const CallTensors& t = c.args.tensors;
  const uint32_t top_k = c.view().spec.shape.top_k;
  if (kPlain && t.id_slot_stride == 1 && t.id_token_stride == top_k) return slot_expert<kPlain>(c, 0, token_slot);
  return slot_expert<kPlain>(c, token_slot / top_k, token_slot % top_k);
}
template <bool kPlain, class Spec>
__device__ __forceinline__ float slot_weight(Context<Spec>& c, uint32_t token_slot) {
  const CallTensors& t = c.args.tensors;
  const uint32_t top_k = c.view().spec.shape.top_k;
  if (kPlain && t.weight_slot_stride == 1 && t.weight_token_stride == top_k)
    return slot_weight<kPlain>(c, 0, token_slot);
  return slot_weight<kPlain>(c, token_slot / top_k, token_slot % top_k);
}

/// Turns count(0 .. n) into their exclusive sums in first[0 .. n); returns the total. By one warp.
template <class Count>
__device__ __forceinline__ uint32_t exclusive_sums(Count count, uint32_t* first, uint32_t n, uint32_t lane) {
  uint32_t before = 0;
  for (uint32_t base = 0; base < n; base += 32) {
    const uint32_t own = base + lane < n ? count(base + lane) : 0;
    uint32_t sum = own;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(kFullWarp, sum, step);
      if (lane >= step) sum += left;
    }
    if (base + lane < n) first[base + lane] = before + sum - own;
    before += __shfl_sync(kFullWarp, sum, 31);
  }
  return before;
}

/// The slots that one CTA sorts.
struct SlotPart {
  uint32_t begin;
  uint32_t end;
};

/// About one a thread. To meet costs the same for any number of CTAs: 1,536 were 6 us slower at 1,024 tokens, 6,144 18
/// us.
inline constexpr uint32_t kSlotsPerCta = 384;

/// How many CTAs sort.
__device__ __forceinline__ uint32_t num_sorting_ctas(uint32_t num_slots) {
  return core::max(1u, core::min(core::ceil_div(num_slots, kSlotsPerCta), gridDim.x));
}

/// Visits this CTA's slots that are not masked: visit(slot index, expert).
template <bool kPlain, class Spec, class Visit>
__device__ __forceinline__ void for_each_slot(Context<Spec>& c, const SlotPart& part, Visit visit) {
  for (uint32_t slot = part.begin + threadIdx.x; slot < part.end; slot += blockDim.x) {
    const int32_t expert = slot_expert<kPlain>(c, slot);
    if (expert != protocol::kMaskedSlot) visit(slot, expert);
  }
}

/// Notes the first entry of the expert map that is neither -1 nor an expert.
__device__ __forceinline__ void check_map(const protocol::SlotRules& rules, RouteScratch& scratch) {
  if (rules.expert_map == nullptr) return;
  for (uint32_t at = threadIdx.x; at < rules.num_ids * rules.max_copies; at += blockDim.x)
    if (!rules.is_map_value(rules.map_entry(at / rules.max_copies, at % rules.max_copies)))
      atomicMax(&scratch.first_bad_map, UINT32_MAX - at);
}

/// Counts the slots of each expert into scratch.counts; notes the first id that is neither -1 nor an expert.
template <bool kPlain, class Spec>
__device__ __forceinline__ void count_slots(Context<Spec>& c, RouteScratch& scratch, const SlotPart& part) {
  const uint32_t num_experts = c.view().spec.shape.num_experts;
  for (uint32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x) scratch.counts[expert] = 0;
  if (threadIdx.x == 0) scratch.first_bad = scratch.first_bad_map = 0;
  __syncthreads();
  if (!kPlain && blockIdx.x == 0) check_map(c.args.rules, scratch);
  for_each_slot<kPlain>(c, part, [&](uint32_t slot, int32_t expert) {
    if (expert >= 0) {
      atomicAdd(&scratch.counts[expert], 1u);
    } else {
      atomicMax(&scratch.first_bad, UINT32_MAX - slot);
    }
  });
  __syncthreads();
}

/// Waits until all sorting CTAs have added themselves to `counter`; by the first warp, then the CTA.
/// Order: acquires at rank scope; pairs with meet.
template <class Spec>
__device__ __forceinline__ void await_sorters(Context<Spec>& c, const uint32_t* counter, uint32_t num_ctas) {
  if (c.warp() == 0)
    wait_warp(c, {Signal::kPlanReady, Role::kDispatch, 0, num_ctas}, [&](uint64_t& seen) {
      seen = ptx::load_acquire_gpu(counter);
      return seen >= num_ctas;
    });
  __syncthreads();
}

/// Order: releases all of the CTA's writes at rank scope; pairs with await_sorters.
__device__ __forceinline__ void meet(uint32_t* counter) {
  __syncthreads();
  if (threadIdx.x == 0) ptx::add_release_gpu(counter, 1);
}

/// With several CTAs: adds up everybody's counts. Afterwards scratch.counts has the totals, and scratch.next the place
/// of this CTA's first slot of each expert, counted from the expert's first.
template <class Spec>
__device__ __forceinline__ void share_counts(Context<Spec>& c, RouteScratch& scratch, uint32_t num_ctas) {
  const uint32_t num_experts = c.view().spec.shape.num_experts;
  SortState& state = c.args.grid_state->sort[c.bank()];
  for (uint32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x) {
    const uint32_t count = scratch.counts[expert];
    scratch.next[expert] = count != 0 ? atomicAdd(&state.claimed[expert], count) : 0;
  }
  if (threadIdx.x == 0 && scratch.first_bad != 0) atomicMax(&state.first_bad, scratch.first_bad);
  c.chaos();
  meet(&state.ctas_counted);
  await_sorters(c, &state.ctas_counted, num_ctas);
  for (uint32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x)
    scratch.counts[expert] = __ldcg(&state.claimed[expert]);
  if (threadIdx.x == 0) scratch.first_bad = __ldcg(&state.first_bad);
  __syncthreads();
}

/// Where one rank is alone, its own counts are the plan: block numbers by one warp.
template <class Spec>
__device__ __forceinline__ void plan_own_blocks(Context<Spec>& c, const RouteScratch& scratch) {
  const uint32_t num_experts = c.view().spec.shape.num_experts;
  const protocol::BlockCut cut = c.view().spec.cut();
  uint32_t* first_block = c.own(c.layout().expert_first_block);
  const uint32_t total = exclusive_sums([&](uint32_t expert) { return cut.num_blocks(scratch.counts[expert]); },
                                        first_block, num_experts, c.lane());
  if (c.lane() != 0) return;
  first_block[num_experts] = total;
  c.own(c.layout().bank_blocks)[c.epoch() & 1] = total;
  c.args.grid_state->refused.words[0] = c.args.grid_state->refused.words[1] = 0;
}
/// The rest of it, by the whole CTA.
template <class Spec>
__device__ __forceinline__ void plan_own_rows(Context<Spec>& c, const RouteScratch& scratch) {
  for (uint32_t expert = threadIdx.x; expert < c.view().spec.shape.num_experts; expert += blockDim.x) {
    c.own(c.layout().expert_num_rows)[expert] = scratch.counts[expert];
    c.own(c.layout().source_first_row)[expert] = 0;
    c.own_bank(c.layout().slot_ranges)[expert] = {scratch.counts[expert], scratch.first[expert]};
  }
}

/// Writes this CTA's part of the slot list: by expert; the order inside an expert is any order, on which no result
/// depends. Where one rank is alone, the first CTA writes its plan beside it.
template <bool kPlain, class Spec>
__device__ __forceinline__ void place_slots(Context<Spec>& c, RouteScratch& scratch, const SlotPart& part) {
  const uint32_t num_experts = c.view().spec.shape.num_experts;
  const bool plans = blockIdx.x == 0 && c.view().spec.num_ranks == 1;
  if (c.warp() == 0)
    exclusive_sums([&](uint32_t expert) { return scratch.counts[expert]; }, scratch.first, num_experts, c.lane());
  if (plans && c.warp() == 1) plan_own_blocks(c, scratch);
  __syncthreads();
  for (uint32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x)
    scratch.next[expert] += scratch.first[expert];
  __syncthreads();
  if (plans) plan_own_rows(c, scratch);
  protocol::SlotEntry* list = c.own(c.layout().slot_list);
  for_each_slot<kPlain>(c, part, [&](uint32_t slot, int32_t expert) {
    list[atomicAdd(&scratch.next[expert], 1u)] = {slot, slot_weight<kPlain>(c, slot)};
  });
}

/// Sorts this CTA's part of the slots. Returns whether this rank refuses the call.
template <bool kPlain, class Spec>
__device__ __forceinline__ bool sort_slots(Context<Spec>& c, RouteScratch& scratch, uint32_t num_ctas) {
  const uint32_t num_slots = c.args.tensors.num_tokens * c.view().spec.shape.top_k;
  const uint32_t size = core::ceil_div(num_slots, num_ctas);
  const uint32_t begin = core::min(blockIdx.x * size, num_slots);
  const SlotPart part{begin, core::min(begin + size, num_slots)};
  count_slots<kPlain>(c, scratch, part);
  if (num_ctas > 1) {
    share_counts(c, scratch, num_ctas);
  } else {
    for (uint32_t expert = threadIdx.x; expert < c.view().spec.shape.num_experts; expert += blockDim.x)
      scratch.next[expert] = 0;
  }
  if (scratch.first_bad != 0 || scratch.first_bad_map != 0 || has_failed(c.shared)) return true;
  place_slots<kPlain>(c, scratch, part);
  if (num_ctas > 1) {
    SortState& state = c.args.grid_state->sort[c.bank()];
    c.chaos();
    meet(&state.ctas_placed);
    if (blockIdx.x == 0) await_sorters(c, &state.ctas_placed, num_ctas);
  }
  return false;
}

/// Why this rank refuses: what the host found, else the map, else the ids.
template <class Spec>
__device__ __forceinline__ void write_refusal(Context<Spec>& c, const RouteScratch& scratch, protocol::Refusal* to) {
  const protocol::SlotRules& rules = c.args.rules;
  const protocol::Refusal& found = c.args.refusal;
  to->kind = found.kind;
  to->code = found.code;
  for (uint32_t i = 0; i < sizeof(found.text); ++i) to->text[i] = found.text[i];
  if (found.kind != protocol::RefusalKind::kNone) return;
  if (scratch.first_bad_map != 0) {
    const uint32_t at = UINT32_MAX - scratch.first_bad_map;
    to->kind = protocol::RefusalKind::kMapOutOfRange;
    to->token = at / rules.max_copies;
    to->slot = at % rules.max_copies;
    to->value = rules.map_entry(to->token, to->slot);
    to->limit = rules.num_physical;
  } else {
    const uint32_t at = UINT32_MAX - scratch.first_bad, top_k = c.view().spec.shape.top_k;
    to->kind = protocol::RefusalKind::kIdOutOfRange;
    to->token = at / top_k;
    to->slot = at % top_k;
    to->value = topk_id(c.args.tensors, at / top_k, at % top_k);
    to->limit = rules.num_ids;
  }
}

/// Order: each header is released at system scope after the slot list, the ranges and the refusal (all threads' writes,
/// through the CTA barrier); pairs with wait_headers of every owner.
template <class Spec>
__device__ __forceinline__ void publish_headers(Context<Spec>& c, const RouteScratch& scratch, bool refused) {
  const protocol::RankView& view = c.view();
  const uint32_t local = view.spec.local_experts();
  const bool tells_rank = threadIdx.x < view.spec.num_ranks && !c.is_absent(threadIdx.x);
  if (!refused) {
    for (uint32_t expert = threadIdx.x; expert < view.spec.shape.num_experts; expert += blockDim.x)
      if (!c.is_absent(expert / local))
        c.peer_bank(c.layout().slot_ranges, expert / local)[uint64_t{view.rank} * local + expert % local] = {
            scratch.counts[expert], scratch.first[expert]};
  } else if (tells_rank) {
    write_refusal(c, scratch, c.peer_bank(c.layout().refusal, threadIdx.x) + view.rank);
  }
  __syncthreads();
  const uint64_t flags = (refused ? protocol::kHeaderRefused : 0) |
                         (c.args.tensors.source == TokenSource::kReadInPlace ? protocol::kHeaderInputReady : 0);
  c.chaos();
  if (tells_rank)
    ptx::store_release_sys(c.peer_bank(c.layout().header, threadIdx.x) + view.rank,
                           protocol::header_value(c.epoch(), flags));
}

/// Of all present ranks, one lane a source. Returns false where a header did not come; `refused` is the set of ranks
/// that refuse the call.
template <class Spec>
__device__ __forceinline__ bool wait_headers(Context<Spec>& c, uint32_t* refused_words) {
  const uint32_t num_ranks = c.view().spec.num_ranks;
  for (uint32_t base = 0; base < num_ranks; base += 32) {
    const uint32_t source = base + c.lane();
    uint64_t header = 0;
    const auto arrived = [&](uint64_t& seen) {
      if (source >= num_ranks || c.is_absent(source)) return true;
      seen = header = ptx::load_acquire_sys(c.own_bank(c.layout().header) + source);
      return protocol::header_epoch(header) == c.epoch();
    };
    const WaitSite site{Signal::kHeader, Role::kDispatch, source, protocol::header_value(c.epoch(), 0)};
    if (!wait_warp(c, site, arrived)) {
      // Every header that is still owed is named, not only the one whose lane gave up first.
      for (uint32_t other = c.lane(); other < num_ranks; other += 32)
        if (!c.is_absent(other) &&
            protocol::header_epoch(ptx::load_acquire_sys(c.own_bank(c.layout().header) + other)) != c.epoch())
          blame(c.shared, other);
      return false;
    }
    const uint32_t word = __ballot_sync(kFullWarp, source < num_ranks && (header & protocol::kHeaderRefused) != 0);
    if (c.lane() == 0) refused_words[base / 32] = word;
  }
  return true;
}

/// Adds what this call's plan says to cumulative_recv_counts; each thread reads what it wrote in publish_plan.
template <class Spec>
__device__ __forceinline__ void count_received(Context<Spec>& c) {
  const CallTensors& t = c.args.tensors;
  const uint32_t* num_rows = c.own(c.layout().expert_num_rows);
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < c.args.rules.routed_local; expert += blockDim.x) {
    const uint32_t rows = num_rows[expert];
    if (t.recv_counts_are_64_bit) {
      static_cast<int64_t*>(t.recv_counts)[expert] += rows;
    } else {
      static_cast<int32_t*>(t.recv_counts)[expert] += static_cast<int32_t>(rows);
    }
  }
}

/// As protocol::clear_absent_ranges; each thread clears what it reads in publish_plan.
template <class Spec>
__device__ __forceinline__ void clear_absent_ranges(Context<Spec>& c) {
  const uint32_t local = c.view().spec.local_experts();
#pragma unroll 1
  for (uint32_t source = 0; source < c.view().spec.num_ranks; ++source) {
    if (!c.is_absent(source)) continue;
#pragma unroll 1
    for (uint32_t expert = threadIdx.x; expert < local; expert += blockDim.x)
      c.own_bank(c.layout().slot_ranges)[uint64_t{source} * local + expert] = {0, 0};
  }
}

/// The pool plan of this call: the same numbers as protocol::make_pool_plan, one thread an expert.
/// Order: plan_ready is released at rank scope; pairs with wait_plan.
template <class Spec>
__device__ __forceinline__ void publish_plan(Context<Spec>& c, RouteScratch& scratch) {
  const protocol::RankView& view = c.view();
  const uint32_t local = view.spec.local_experts(), num_ranks = view.spec.num_ranks;
  const bool refused = (scratch.refused_words[0] | scratch.refused_words[1] | scratch.refused_words[2]) != 0;
  uint32_t* num_rows = c.own(c.layout().expert_num_rows);
  uint32_t* first_row = c.own(c.layout().source_first_row);
  if (__builtin_expect(!c.args.tensors.is_plain, false)) clear_absent_ranges(c);
  for (uint32_t expert = threadIdx.x; expert < local; expert += blockDim.x) {
    uint32_t rows = 0;
    for (uint32_t n = 0; n < num_ranks && !refused; ++n) {
      const uint64_t cell = uint64_t{protocol::nth_source(view.rank, n, num_ranks)} * local + expert;
      first_row[cell] = rows;
      rows += __ldcg(&c.own_bank(c.layout().slot_ranges)[cell].num_rows);
    }
    num_rows[expert] = rows;
    scratch.counts[expert] = view.spec.cut().num_blocks(rows);
  }
  if (__builtin_expect(c.args.tensors.recv_counts != nullptr, false) && !refused) count_received(c);
  __syncthreads();
  if (c.warp() == 0) {
    uint32_t* first_block = c.own(c.layout().expert_first_block);
    const uint32_t total =
        exclusive_sums([&](uint32_t expert) { return scratch.counts[expert]; }, first_block, local, c.lane());
    if (c.lane() == 0) {
      first_block[local] = total;
      c.own(c.layout().bank_blocks)[(c.epoch() & 1)] = total;
      protocol::RankSet& set = c.args.grid_state->refused;
      set.words[0] = scratch.refused_words[0] | uint64_t{scratch.refused_words[1]} << 32;
      set.words[1] = scratch.refused_words[2];
    }
  }
  __syncthreads();
  c.chaos();
  if (threadIdx.x == 0) ptx::store_release_gpu(c.own(c.layout().plan_ready), c.epoch());
}

/// Of a rank that is alone: place_slots has written the plan. The header is for wait_run, which acquires plan_ready.
/// Order: as in publish_plan.
template <class Spec>
__device__ __forceinline__ void publish_own_plan(Context<Spec>& c) {
  if (threadIdx.x == 0) {
    const uint64_t flags = c.args.tensors.source == TokenSource::kReadInPlace ? protocol::kHeaderInputReady : 0;
    *c.own_bank(c.layout().header) = protocol::header_value(c.epoch(), flags);
  }
  if (__builtin_expect(c.args.tensors.recv_counts != nullptr, false)) count_received(c);
  __syncthreads();
  c.chaos();
  if (threadIdx.x == 0) ptx::store_release_gpu(c.own(c.layout().plan_ready), c.epoch());
}

/// The whole head. On failure the CTA's roles find it marked as failed and leave.
template <class Spec>
__device__ __forceinline__ void route(Context<Spec>& c) {
  const uint32_t num_ctas = num_sorting_ctas(c.args.tensors.num_tokens * c.view().spec.shape.top_k);
  if (blockIdx.x >= num_ctas) return;
  RouteScratch& scratch = c.shared.route_scratch();
  bool refused = c.args.refusal.kind != protocol::RefusalKind::kNone;
  if (!refused) {
    // Two copies of the code: what a plain call runs, it fetches in one piece.
    if (__builtin_expect(c.args.tensors.is_plain, true)) {
      refused = sort_slots<true>(c, scratch, num_ctas);
    } else {
      refused = sort_slots<false>(c, scratch, num_ctas);
    }
  }
  if (blockIdx.x == 0 && !has_failed(c.shared) && !refused && c.view().spec.num_ranks == 1) {
    publish_own_plan(c);
  } else if (blockIdx.x == 0 && !has_failed(c.shared)) {
    publish_headers(c, scratch, refused);
    if (c.warp() == 0) {
      if (c.lane() < 4) scratch.refused_words[c.lane()] = 0;
      __syncwarp();
      wait_headers(c, scratch.refused_words);
    }
    __syncthreads();
    if (!has_failed(c.shared)) publish_plan(c, scratch);
  }
  __syncthreads();
}

/// Zeroes the counters that the next call will use. Their last users ended with the previous launch, the next ones
/// start with the next launch; no peer writes them.
template <class Spec>
__device__ __forceinline__ void clean_idle_bank(Context<Spec>& c) {
  const protocol::RankView& view = c.view();
  const uint32_t idle = (c.epoch() & 1) ^ 1;
  const protocol::Banks bank(view, idle);
  uint32_t* used = c.own(c.layout().bank_blocks) + idle;
  const uint32_t num_blocks = *used;
  for (uint32_t block = threadIdx.x; block < num_blocks; block += blockDim.x) {
    bank.tokens_full[block] = 0;
    bank.acts_full[block] = 0;
    bank.acts_empty[block] = 0;
  }
  for (uint32_t expert = threadIdx.x; expert < view.spec.local_experts(); expert += blockDim.x)
    bank.expert_blocks_done[expert] = 0;
  if (threadIdx.x < 4) bank.tickets[threadIdx.x] = 0;
  auto* sort = reinterpret_cast<uint32_t*>(&c.args.grid_state->sort[idle]);
  for (uint32_t i = threadIdx.x; i < sizeof(SortState) / 4; i += blockDim.x) sort[i] = 0;
  __syncthreads();
  if (threadIdx.x == 0) *used = 0;
}

}  // namespace megamoe::sm90
