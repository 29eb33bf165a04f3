// What a warp knows about its call, and the only ways to wait on this machine: bounded, watching for aborts.
#pragma once

#include "backends/sm90/kernel_args.h"
#include "backends/sm90/ptx/mbarrier.cuh"
#include "backends/sm90/ptx/memory.cuh"
#include "backends/sm90/ptx/tma.cuh"
#include "backends/sm90/shared_storage.cuh"

namespace megamoe::sm90 {

using protocol::Role;
using protocol::Signal;

inline constexpr uint32_t kFullWarp = 0xffffffffu;
inline constexpr uint32_t kLooksPerCheck = 64;

/// One warp's sight of the call. What is rarely needed is read again each time: registers are what the math role is
/// short of.
template <class Spec>
struct Context {
  const KernelArgs& args;
  SharedStorage<Spec>& shared;

  __device__ __forceinline__ const protocol::RankView& view() const { return args.view; }
  __device__ __forceinline__ uint32_t lane() const { return ptx::lane_index(); }
  /// Of the CTA; the same in all lanes.
  __device__ __forceinline__ uint32_t warp() const { return __shfl_sync(0xffffffffu, ptx::thread_index() / 32, 0); }
  __device__ __forceinline__ uint32_t epoch() const { return *static_cast<const volatile uint32_t*>(&shared.epoch); }
  __device__ __forceinline__ uint32_t bank() const { return epoch() & 1; }

  /// A line of the trace, from lane 0; nothing at all in the variants without one.
  __device__ __forceinline__ void trace(protocol::Event event, bool is_end, uint32_t value = 0) const {
    if constexpr (Spec::kTrace) {
      if (lane() != 0 || args.trace.records == nullptr) return;
      const uint32_t own_warp = ptx::thread_index() / 32;
      const uint32_t count = shared.trace_count[own_warp]++;
      TraceRecord record;
      record.time_ns = ptx::now_ns();
      record.value = value;
      record.event = event;
      record.is_end = is_end ? 1 : 0;
      record.sm = static_cast<uint16_t>(blockIdx.x);
      args.trace.records[(uint64_t{blockIdx.x} * (blockDim.x / 32) + own_warp) * args.trace.capacity +
                         count % args.trace.capacity] = record;
    }
  }

  /// Before every release and after every acquire: a pause of random length in the chaos variant, mostly below 1 us,
  /// one in 32 up to 16 us. True, so that it can stand in a condition.
  __device__ __forceinline__ bool chaos() const {
    if constexpr (Spec::kChaos) {
      const uint32_t draw =
          (static_cast<uint32_t>(ptx::now_ns()) ^ (blockIdx.x << 8 | ptx::thread_index() / 32)) * 2654435761u;
      __nanosleep(draw >> 27 == 0 ? draw >> 8 & 0x3fff : draw >> 8 & 0x3ff);
    }
    return true;
  }

  /// A region of this rank's workspace, or of another rank's.
  template <class T>
  __device__ __forceinline__ T* own(const protocol::Region<T>& region) const {
    return peer(region, args.view.rank);
  }
  template <class T>
  __device__ __forceinline__ T* peer(const protocol::Region<T>& region, uint32_t rank) const {
    uint64_t base = reinterpret_cast<uint64_t>(args.view.flat_base);
    asm volatile("" : "+l"(base));
    return reinterpret_cast<T*>(base + rank * args.view.stride_bytes + region.offset);
  }
  /// This call's half of a region that has two banks.
  template <class T>
  __device__ __forceinline__ T* own_bank(const protocol::Region<T>& region) const {
    return own(region) + bank() * (region.count / 2);
  }
  template <class T>
  __device__ __forceinline__ T* peer_bank(const protocol::Region<T>& region, uint32_t rank) const {
    return peer(region, rank) + bank() * (region.count / 2);
  }
  __device__ __forceinline__ const protocol::Workspace& layout() const { return args.view.layout; }
  __device__ __forceinline__ bool is_absent(uint32_t rank) const {
    return !args.tensors.is_plain && args.rules.absent.contains(rank);
  }
  __device__ __forceinline__ protocol::PoolPlan pool_plan() const {
    return {own(layout().expert_first_block), own(layout().expert_num_rows), own(layout().source_first_row),
            args.view.spec.local_experts(), args.view.spec.cut()};
  }
};

/// What a wait is about, for the error record.
struct WaitSite {
  Signal signal;
  Role role;
  uint64_t index = 0;
  uint64_t expected = 0;
};

template <class Shared>
__device__ __forceinline__ bool has_failed(const Shared& shared) {
  return *static_cast<const volatile uint32_t*>(&shared.failure.raised) != 0;
}

/// Notes that this thread gives up. Only the first of the CTA leaves its site; the CTA's other waits then leave too.
/// @param seen  the last value looked at
template <class Shared>
__device__ __forceinline__ void fail(Shared& shared, const WaitSite& site, uint64_t seen, uint64_t waited_ns,
                                     bool timed_out) {
  Failure& f = shared.failure;
  if (atomicExch(&f.claimed, 1u) == 0) {
    f.timed_out = timed_out ? 1 : 0;
    f.role = site.role;
    f.signal = site.signal;
    f.index = site.index;
    f.expected = site.expected;
    f.seen = seen;
    f.waited_ns = waited_ns;
  }
  __threadfence_block();
  *static_cast<volatile uint32_t*>(&f.raised) = 1;
}

/// Whether a wait that began at `start_ns` must end: the CTA or a rank has given up, or the deadline has passed.
template <class Spec>
__device__ __forceinline__ bool must_leave(Context<Spec>& c, const WaitSite& site, uint64_t start_ns, uint64_t limit_ns,
                                           uint64_t seen) {
  if (has_failed(c.shared)) return true;
  const uint64_t waited_ns = ptx::now_ns() - start_ns;
  // Acquire: pairs with report_failure, which releases the abort word after the error record.
  const bool aborted = ptx::load_acquire_sys(c.own(c.layout().abort_word)) != 0;
  if (!aborted && waited_ns <= limit_ns) return false;
  fail(c.shared, site, seen, waited_ns, !aborted);
  return true;
}

/// Waits, as a whole warp, until `look(seen)` holds in every lane. `look` makes the acquire load that pairs with the
/// release of `site.signal`. False: the warp must leave without touching what it waited for.
/// @tparam kSleepNs  between two looks, once the wait turns out to be a long one
template <uint32_t kSleepNs = 32, class Spec, class Look>
__device__ __forceinline__ bool wait_warp(Context<Spec>& c, const WaitSite& site, Look look) {
  uint64_t seen = 0;
  if (__all_sync(kFullWarp, look(seen))) return c.chaos();
  const uint64_t start_ns = ptx::now_ns();
  const uint64_t limit_ns = c.args.timeout_ns + static_cast<uint64_t>(site.signal) * protocol::kBlameStepNs;
  for (uint32_t looks = 1;; ++looks) {
    const bool ready = look(seen);
    if (__all_sync(kFullWarp, ready)) return c.chaos();
    if (looks > 8) __nanosleep(kSleepNs);
    if (looks % kLooksPerCheck != 0) continue;
    const bool leave = !ready && must_leave(c, site, start_ns, limit_ns, seen);
    if (__any_sync(kFullWarp, leave)) return false;
  }
}

/// Whether a phase of a barrier is complete for the whole warp. The vote also tells the compiler that the warp stays
/// together, which keeps operands in uniform registers.
__device__ __forceinline__ bool test_warp(uint32_t barrier, uint32_t parity) {
  return __all_sync(kFullWarp, ptx::mbarrier_test(barrier, parity));
}

/// The rest of a wait that was not over at once; see wait_barrier.
template <class Spec>
__device__ __forceinline__ bool keep_waiting(Context<Spec>& c, uint32_t barrier, uint32_t parity, Role role,
                                             uint64_t start_ns) {
  const uint64_t waited_ns = ptx::now_ns() - start_ns;
  if (waited_ns <= c.args.timeout_ns + (protocol::kNumSignals + 2) * protocol::kBlameStepNs) return true;
  fail(c.shared, {Signal::kTileTicket, role, barrier, parity}, 0, waited_ns, true);
  return false;
}

/// Waits, as a whole warp, for a phase of a barrier of this CTA. Barriers are always completed, by the load warps also
/// after a failure, so that a warpgroup stays together; a wait gives up only where something is broken.
template <class Spec>
__device__ __forceinline__ bool wait_barrier(Context<Spec>& c, uint32_t barrier, uint32_t parity, Role role) {
  if (test_warp(barrier, parity)) return c.chaos();
  const uint64_t start_ns = ptx::now_ns();
  for (uint32_t looks = 1;; ++looks) {
    if (__all_sync(kFullWarp, ptx::mbarrier_try_wait(barrier, parity))) return c.chaos();
    if (looks % kLooksPerCheck == 0 && __any_sync(kFullWarp, !keep_waiting(c, barrier, parity, role, start_ns)))
      return false;
  }
}

/// The same for one thread.
template <class Spec>
__device__ __forceinline__ bool wait_barrier_alone(Context<Spec>& c, uint32_t barrier, uint32_t parity, Role role) {
  if (ptx::mbarrier_try_wait(barrier, parity)) return c.chaos();
  const uint64_t start_ns = ptx::now_ns();
  for (uint32_t looks = 1;; ++looks) {
    if (ptx::mbarrier_try_wait(barrier, parity)) return c.chaos();
    if (looks % kLooksPerCheck == 0 && !keep_waiting(c, barrier, parity, role, start_ns)) return false;
  }
}

/// Leaves this rank's error record and raises every rank's abort word; the grid's first CTA that gives up does it.
/// Order: the abort word is released at system scope after the record; pairs with must_leave on every rank.
template <class Spec>
__device__ __forceinline__ void report_failure(Context<Spec>& c) {
  const protocol::RankView& view = c.view();
  const Failure& f = c.shared.failure;
  if (f.timed_out == 0) return;
  if (ptx::add_acq_rel_gpu(c.own(c.layout().error_claim), 1) != 0) return;
  protocol::ErrorRecord& record = *c.own(c.layout().error_record);
  record.rank = static_cast<uint16_t>(view.rank);
  record.role = f.role;
  record.signal = f.signal;
  record.worker = blockIdx.x;
  record.epoch = c.epoch();
  record.index = f.index;
  record.expected = f.expected;
  record.seen = f.seen;
  record.missing.words[0] = f.missing[0];
  record.missing.words[1] = f.missing[1];
  record.waited_ns = f.waited_ns;
  record.valid = protocol::kRecordGaveUp;
  c.chaos();
  for (uint32_t peer = 0; peer < view.spec.num_ranks; ++peer)
    if (!c.is_absent(peer))
      ptx::store_release_sys(c.peer(c.layout().abort_word, peer), protocol::abort_value(c.epoch(), view.rank));
}

/// Marks a rank as owing the signal of this CTA's failure.
template <class Shared>
__device__ __forceinline__ void blame(Shared& shared, uint32_t rank) {
  atomicOr(&shared.failure.missing[rank / 64], 1ull << (rank % 64));
}

}  // namespace megamoe::sm90
