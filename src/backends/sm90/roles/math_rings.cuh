// What every math warp does around its multiplies: takes tiles and stages from the rings, and hands on what it staged.
#pragma once

#include "backends/sm90/roles/load.cuh"

namespace megamoe::sm90 {

/// A math warp's position in the rings.
template <class Spec>
class MathRings {
 protected:
  using Shared = SharedStorage<Spec>;

  enum State : uint32_t {
    kStagingPhase = 1,  ///< Of the next tile in staging.
    kAmaxPhase = 2,     ///< Parity and buffer of the next exchange of row maxima.
    kBroken = 4,        ///< A wait has passed its deadline.
    kFirstFreeBit = 8,
  };

  __device__ explicit MathRings(Context<Spec>& c)
      : c_(c), shared_(__shfl_sync(kFullWarp, ptx::shared_address(&c.shared), 0)) {}

  __device__ __forceinline__ uint32_t amax_phase() const { return (state_ & kAmaxPhase) != 0 ? 1 : 0; }

  /// Through a shuffle, so that the compiler knows the value to be the same in a warp and keeps operands in uniform
  /// registers.
  static __device__ __forceinline__ uint32_t uniform(uint32_t value) { return __shfl_sync(kFullWarp, value, 0); }

  __device__ __forceinline__ bool wait_note() {
    return wait_barrier(c_, shared_ + offsetof(Shared, note_full) + slot_.index * 8, slot_.phase, Role::kMath);
  }
  __device__ __forceinline__ TileNote announced_tile() const {
    TileNote note = note_at(c_, slot_.index);
    note.kind = static_cast<uint16_t>(uniform(note.kind));
    note.num_rows = uniform(note.num_rows);
    return note;
  }
  __device__ __forceinline__ void release_note() {
    c_.chaos();
    if (c_.lane() == 0) ptx::mbarrier_arrive(shared_ + offsetof(Shared, note_empty) + slot_.index * 8);
    slot_.advance(Spec::kSpec.num_tile_slots);
  }

  __device__ __forceinline__ uint32_t stage_full(uint32_t index) const {
    return shared_ + offsetof(Shared, stage_full) + index * 8;
  }
  __device__ __forceinline__ uint32_t stage_empty(uint32_t index) const {
    return shared_ + offsetof(Shared, stage_empty) + index * 8;
  }
  /// Gives up at the deadline, and then never waits again: the k loop has no way out, so that all warps of the
  /// warpgroup run the same multiplies.
  __device__ __forceinline__ void wait_stage() {
    if ((state_ & kBroken) == 0 && !wait_barrier(c_, stage_full(stage_.index), stage_.phase, Role::kMath))
      state_ |= kBroken;
  }
  __device__ __forceinline__ void release_stage(uint32_t index) {
    c_.chaos();
    if (c_.lane() == 0) ptx::mbarrier_arrive(stage_empty(index));
  }
  __device__ __forceinline__ void advance_stage() {
    constexpr uint32_t kStageLow = sizeof(typename Shared::Stage) >> 4;
    stage_.advance(Spec::kSpec.num_stages);
    stage_low_ = stage_.index * kStageLow;
  }

  __device__ __forceinline__ bool wait_staging() {
    return wait_barrier(c_, shared_ + offsetof(Shared, staging_empty), (state_ & kStagingPhase) ^ 1, Role::kMath);
  }
  /// After the warp's stores to staging. Pairs with store_tiles.
  __device__ __forceinline__ void release_staging() {
    c_.chaos();
    if (c_.lane() == 0) ptx::mbarrier_arrive(shared_ + offsetof(Shared, staged));
    state_ ^= kStagingPhase;
  }

  Context<Spec>& c_;
  const uint32_t shared_;
  uint32_t stage_low_ = 0;  ///< Of the stage at hand: how far its operands lie from the first one's.
  RingState stage_;
  RingState slot_;
  uint32_t state_ = 0;  ///< Bits of State: one register.
};

}  // namespace megamoe::sm90
