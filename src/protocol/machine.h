// What a role may ask of the thing it runs on: a CPU thread, a warp, a simulator. No role names a CUDA or a std type.
#pragma once

#include <concepts>

#include "core/portable.h"
#include "protocol/signal.h"

namespace megamoe::protocol {

/// Atomics carry the signal that they serve, so that a machine knows the scope, can trace it, delay it, or (in tests)
/// break it. Every release pairs with the acquire named in kSignals; there are no standalone fences.
template <class M>
concept Machine = requires(M m, uint32_t* word, uint64_t* cell, void* dst, const void* src, uint64_t n,
                           uint32_t spins) {
  /// Publishes everything this agent wrote or acquired before.
  {m.template store_release<Signal::kHeader>(cell, n)};
  {m.template store_release<Signal::kExpertDone>(word, spins)};
  {m.template add_release<Signal::kTokensFull>(word, spins)};
  { m.template load_acquire<Signal::kHeader>(cell) } -> std::same_as<uint64_t>;
  { m.template load_acquire<Signal::kTokensFull>(word) } -> std::same_as<uint32_t>;
  /// Returns the value before the addition; both acquires and releases.
  { m.template add_acq_rel<Signal::kActsEmpty>(word, spins) } -> std::same_as<uint32_t>;
  /// Returns the value before the addition; orders nothing (tickets).
  { m.template add_relaxed<Signal::kTileTicket>(word, spins) } -> std::same_as<uint32_t>;
  /// Copies bytes that may lie in another rank's memory; complete when it returns.
  {m.copy(dst, src, n)};
  /// Called between two looks of a wait: spins at first, later gives the processor away.
  {m.relax(spins)};
  { m.now_ns() } -> std::same_as<uint64_t>;
};

}  // namespace megamoe::protocol
