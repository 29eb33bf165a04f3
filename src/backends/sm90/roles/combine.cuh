// The combine role: a token's rows are summed in slot order as soon as its experts are done.
#pragma once

#include "backends/sm90/roles/route.cuh"

namespace megamoe::sm90 {

/// Waits until every expert that the group's tokens chose is done. A group is one token, or four of up to 8 slots each;
/// lane i / 8 (or 0) is the token, the rest of i the slot. Returns the mask of live lanes.
/// Order: acquires expert_done; pairs with finish_tile on the owner.
/// @tparam kSleepNs  between two looks: long where the polls would compete with the operands of the GEMMs
template <uint32_t kSleepNs, class Spec>
__device__ __forceinline__ bool wait_experts(Context<Spec>& c, uint32_t first_token, uint32_t group_tokens,
                                             uint32_t& live) {
  const protocol::RankView& view = c.view();
  const uint32_t lane = c.lane(), token = first_token + (group_tokens > 1 ? lane / 8 : 0);
  const uint32_t slot = group_tokens > 1 ? lane % 8 : lane;
  const bool has_slot = slot < view.spec.shape.top_k && token < c.args.tensors.num_tokens;
  int32_t expert = protocol::kMaskedSlot;
  if (__builtin_expect(c.args.tensors.is_plain, true)) {
    if (has_slot) expert = slot_expert<true>(c, token, slot);
  } else if (has_slot) {
    expert = slot_expert<false>(c, token, slot);
  }
  live = __ballot_sync(kFullWarp, expert >= 0);
  const uint32_t* done = c.own(c.layout().expert_done) + (expert >= 0 ? expert : 0);
  const uint32_t epoch = c.epoch();
  const WaitSite site{Signal::kExpertDone, Role::kCombine, static_cast<uint64_t>(expert), epoch};
  const auto is_done = [&](uint64_t& seen) {
    if (expert < 0) return true;
    seen = ptx::load_acquire_sys(done);
    return seen == epoch;
  };
  if (wait_warp<kSleepNs>(c, site, is_done)) {
    __syncwarp();
    return true;
  }
  uint64_t seen = 0;
  if (!is_done(seen)) blame(c.shared, view.owner_of(static_cast<uint32_t>(expert)));
  return false;
}

inline constexpr uint32_t kStepColumns = 256;  ///< 8 columns for each of 32 lanes.

/// FP32 sum from +0 over the live slots in ascending order, rounded once; 8 columns a lane and step.
/// @tparam kInFlight  rows loaded at a time
/// @tparam kSteps     of columns taken together: what is on its way sets the rate at which rows come from memory
template <uint32_t kInFlight, uint32_t kSteps, class Spec>
__device__ __forceinline__ void sum_slots(Context<Spec>& c, uint32_t token, uint32_t live_slots, uint32_t column,
                                          uint32_t end) {
  const protocol::RankView& view = c.view();
  const uint32_t hidden = view.spec.shape.hidden;
  const uint64_t slot_stride = uint64_t{view.spec.max_tokens} * hidden;
  const uint16_t* rows = c.own(c.layout().combine_rows) + uint64_t{token} * hidden + column;
  float sum[kSteps][8] = {};
  while (live_slots != 0) {
    uint4 raw[kInFlight][kSteps];
    uint32_t count = 0;
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      if (live_slots == 0) continue;
      const uint32_t slot = __ffs(live_slots) - 1;
      live_slots &= live_slots - 1;
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step)
        if (column + step * kStepColumns < end)
          raw[i][step] = ptx::load_l2(reinterpret_cast<const uint4*>(rows + slot * slot_stride + step * kStepColumns));
      count = i + 1;
    }
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      if (i >= count) continue;
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step) {
        const uint32_t words[4] = {raw[i][step].x, raw[i][step].y, raw[i][step].z, raw[i][step].w};
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j)
          sum[step][j] =
              __fadd_rn(sum[step][j], __uint_as_float(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xffff0000u));
      }
    }
  }
  const CallTensors& t = c.args.tensors;
  uint16_t* to = t.output + token * t.output_row_stride + column;
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
    const float* x = sum[step];
    if (column + step * kStepColumns < end)
      *reinterpret_cast<uint4*>(to + step * kStepColumns) = {ptx::bf16_pair(x[0], x[1]), ptx::bf16_pair(x[2], x[3]),
                                                             ptx::bf16_pair(x[4], x[5]), ptx::bf16_pair(x[6], x[7])};
  }
}

/// Into how many slices of columns a token's row is cut: few tokens into as many as there are warps, so that each has
/// one; more into slices of kSteps, about four for each warp, so that the warps end together.
template <uint32_t kSteps>
__device__ __forceinline__ uint32_t num_slices(uint32_t num_tokens, uint32_t num_steps, uint32_t num_warps) {
  const uint32_t whole = core::ceil_div(num_steps, kSteps);
  if (num_tokens * whole < num_warps) return core::min(num_steps, core::ceil_div(num_warps, num_tokens));
  return core::min(whole, core::ceil_div(4 * num_warps, num_tokens));
}

/// Takes slices of tokens, or groups of whole tokens, by ticket until none is left.
/// @tparam kInFlight, kSteps, kSleepNs  as in sum_slots, wait_experts
/// @tparam kRehearses  one round first that reads and writes nothing: it brings the instructions while the role has
///                     nothing else to do
template <uint32_t kInFlight, uint32_t kSteps, uint32_t kSleepNs, bool kRehearses, class Spec>
__device__ __forceinline__ void combine(Context<Spec>& c) {
  constexpr uint32_t kSliceSteps = 4;  // of all roles, since they share the tickets
  const protocol::RankView& view = c.view();
  const uint32_t num_tokens = c.args.tensors.num_tokens, hidden = view.spec.shape.hidden;
  if (num_tokens == 0) return;
  const uint32_t num_warps = gridDim.x * (blockDim.x / 32), steps = core::ceil_div(hidden, kStepColumns);
  const uint32_t group_tokens = view.spec.shape.top_k <= 8 && num_tokens >= 8 * num_warps / 2 ? 4 : 1;
  const uint32_t slices = group_tokens > 1 ? 1 : num_slices<kSliceSteps>(num_tokens, steps, num_warps);
  const uint32_t slice_columns = core::ceil_div(steps, slices) * kStepColumns;
  uint32_t* tickets = c.own_bank(c.layout().tickets) + protocol::kCombineTicketIndex;
  const uint32_t num_units = core::ceil_div(num_tokens, group_tokens) * slices;
  bool rehearses = kRehearses;
  for (;;) {
    uint32_t token = 0, first = 0, end = 0, live = 0xffffffffu >> (32 - view.spec.shape.top_k);
    if (!rehearses) {
      const uint32_t unit = __shfl_sync(kFullWarp, c.lane() == 0 ? ptx::add_relaxed_gpu(tickets, 1) : 0, 0);
      if (unit >= num_units) return;
      token = unit / slices * group_tokens;
      first = unit % slices * slice_columns;
      end = core::min(first + slice_columns, hidden);
      c.trace(protocol::Event::kWaitExperts, false, token);
      if (!wait_experts<kSleepNs>(c, token, group_tokens, live)) return;
      c.trace(protocol::Event::kWaitExperts, true, token);
    }
    const uint32_t columns_end = rehearses ? kStepColumns : end;
    rehearses = false;
    // A mask instead of a choice: nvcc 13.0 lets `group_tokens > 1 ? live >> i * 8 & 0xff : live` overwrite `live`.
    const uint32_t token_slots = group_tokens > 1 ? 0xff : 0xffffffffu;
    for (uint32_t i = 0; i < group_tokens && token + i < num_tokens; ++i, live >>= 8) {
      const uint32_t slots = live & token_slots;
      for (uint32_t column = first + c.lane() * 8; column < columns_end; column += kSteps * kStepColumns)
        sum_slots<kInFlight, kSteps>(c, token + i, slots, column, end);
    }
  }
}

}  // namespace megamoe::sm90
