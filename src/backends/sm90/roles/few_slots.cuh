// A small call of one rank, as every warp can see it for itself: its slots in the lanes of the warp. The load role need
// not wait until the first CTA has sorted them and told everybody, 4 us after the launch.
#pragma once

#include "backends/sm90/roles/route.cuh"

namespace megamoe::sm90 {

/// Slot i is in lane i % 32, as element i / 32.
struct FewSlots {
  static constexpr uint32_t kPerLane = 2, kMaxSlots = 32 * kPerLane;

  int32_t expert[kPerLane];  ///< Negative: the slot is masked, or past the last one.
  float weight[kPerLane];

  /// Whether this call is one of these: no rules of its own, tokens read where they lie, an expert's rows in one block.
  template <class Spec>
  __device__ static __forceinline__ bool fit(const Context<Spec>& c) {
    if constexpr (!Spec::kSpec.gathers_rows || Spec::kSpec.block_m < kMaxSlots) return false;
    return gathers_rows(c) && c.args.tensors.is_plain &&
           c.args.tensors.num_tokens * c.view().spec.shape.top_k <= kMaxSlots;
  }

  /// By the whole warp. A call with an id that is no expert will be refused: it has no rows, as in its plan.
  template <class Spec>
  __device__ static __forceinline__ FewSlots read(Context<Spec>& c) {
    const uint32_t num_slots = c.args.tensors.num_tokens * c.view().spec.shape.top_k;
    FewSlots slots;
    bool is_bad = false;
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) {
      const uint32_t slot = i * 32 + c.lane();
      slots.expert[i] = slot < num_slots ? slot_expert<true>(c, slot) : protocol::kMaskedSlot;
      is_bad = is_bad || slots.expert[i] == protocol::kBadSlot;
      slots.weight[i] = slot < num_slots ? slot_weight<true>(c, slot) : 0.0f;
    }
    if (__any_sync(kFullWarp, is_bad))
      for (int32_t& expert : slots.expert) expert = protocol::kMaskedSlot;
    return slots;
  }

  /// Slots of an expert among element i of all lanes, one bit a lane.
  __device__ __forceinline__ uint32_t mask(uint32_t i, uint32_t of_expert) const {
    return __ballot_sync(kFullWarp, expert[i] == static_cast<int32_t>(of_expert));
  }
  __device__ __forceinline__ uint32_t num_rows(uint32_t of_expert) const {
    uint32_t rows = 0;
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) rows += __popc(mask(i, of_expert));
    return rows;
  }
  /// Visits each slot of an expert in its lane: visit(row, slot, weight), rows counted from 0.
  template <class Visit>
  __device__ __forceinline__ void for_each_row(uint32_t of_expert, uint32_t lane, Visit visit) const {
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) {
      const uint32_t slots = mask(i, of_expert);
      if (expert[i] == static_cast<int32_t>(of_expert))
        visit(before + __popc(slots & ((1u << lane) - 1)), i * 32 + lane, weight[i]);
      before += __popc(slots);
    }
  }
};

}  // namespace megamoe::sm90
