// The only way to wait: spin, yield, watch the abort word, give up at the deadline, and say who is missing.
#pragma once

#include "protocol/machine.h"
#include "protocol/rank_view.h"

namespace megamoe::protocol {

enum class WaitResult : uint8_t { kReady, kAborted, kTimeout };

/// What a wait is about, for the error record.
struct WaitSite {
  Signal signal;
  Role role;
  uint32_t worker = 0;
  uint64_t index = 0;
  uint64_t expected = 0;
};

/// Leaves the error record (first waiter of this rank only) and raises the abort word of every rank.
/// Order: the abort word is released at system scope after the record; pairs with the acquire in wait_for.
template <Machine M>
MEGAMOE_HD void give_up(M& m, const RankView& view, const Call& call, const WaitSite& site, uint64_t seen,
                        const RankSet& missing, uint64_t waited_ns) {
  void* own = view.own();
  if (m.template add_relaxed<Signal::kErrorClaim>(view.layout.error_claim.in(own), 1) != 0) return;
  ErrorRecord& record = *view.layout.error_record.in(own);
  record.rank = static_cast<uint16_t>(view.rank);
  record.role = site.role;
  record.signal = site.signal;
  record.worker = site.worker;
  record.epoch = call.epoch;
  record.index = site.index;
  record.expected = site.expected;
  record.seen = seen;
  record.missing = missing;
  record.waited_ns = waited_ns;
  record.valid = kRecordGaveUp;
  for (uint32_t peer = 0; peer < view.spec.num_ranks; ++peer) {
    if (call.absent.contains(peer)) continue;
    m.template store_release<Signal::kAbort>(view.layout.abort_word.in(view.base(peer)),
                                             abort_value(call.epoch, view.rank));
  }
}

/// Raises this rank's abort word because another rank is known to be dead. May run beside a call, on any thread.
/// Order: as in give_up; every other rank is told by its own transport.
template <Machine M>
MEGAMOE_HD void report_death(M& m, const RankView& view, uint32_t dead_rank) {
  void* own = view.own();
  if (m.template add_relaxed<Signal::kErrorClaim>(view.layout.error_claim.in(own), 1) != 0) return;
  ErrorRecord& record = *view.layout.error_record.in(own);
  record.rank = static_cast<uint16_t>(view.rank);
  record.signal = Signal::kAbort;
  record.missing.insert(dead_rank);
  record.valid = kRecordGaveUp;
  m.template store_release<Signal::kAbort>(view.layout.abort_word.in(own), abort_value(0, view.rank));
}

/// Ends the call of ranks that missed earlier ones: their epoch is behind, and nothing that they send could be told
/// from what they sent before. This rank itself goes on; its next record replaces this one. Order: as in give_up.
template <Machine M>
MEGAMOE_HD void turn_away(M& m, const RankView& view, const RankSet& late_ranks) {
  ErrorRecord& record = *view.layout.error_record.in(view.own());
  record = {};
  record.rank = static_cast<uint16_t>(view.rank);
  record.missing = late_ranks;
  record.valid = kRecordLeftOut;
  for (uint32_t peer = 0; peer < view.spec.num_ranks; ++peer)
    if (late_ranks.contains(peer))
      m.template store_release<Signal::kAbort>(view.layout.abort_word.in(view.base(peer)), abort_value(0, view.rank));
}

/// Waits until `look(seen)` returns true. `look` makes the acquire load that pairs with the release of `site.signal`
/// and stores the value seen; `missing()` names the ranks that owe the signal and is asked only when the deadline has
/// passed. On kAborted and kTimeout the caller must leave without touching the data that it waited for.
template <Machine M, class Look, class Missing>
MEGAMOE_HD WaitResult wait_for(M& m, const RankView& view, const Call& call, const WaitSite& site, Look look,
                               Missing missing) {
  constexpr uint32_t kLooksPerCheck = 64;
  uint64_t seen = 0;
  if (look(seen)) return WaitResult::kReady;
  const uint64_t start_ns = m.now_ns();
  const uint64_t limit_ns = call.timeout_ns + static_cast<uint64_t>(site.signal) * kBlameStepNs;
  for (uint32_t spins = 0;; ++spins) {
    if (look(seen)) return WaitResult::kReady;
    if (spins % kLooksPerCheck == 0) {
      if (m.template load_acquire<Signal::kAbort>(view.layout.abort_word.in(view.own())) != 0)
        return WaitResult::kAborted;
      const uint64_t waited_ns = m.now_ns() - start_ns;
      if (waited_ns > limit_ns) {
        give_up(m, view, call, site, seen, missing(), waited_ns);
        return WaitResult::kTimeout;
      }
    }
    m.relax(spins);
  }
}

/// The ranks whose header of this call is not here.
template <Machine M>
MEGAMOE_HD RankSet missing_headers(M& m, const RankView& view, const Call& call) {
  const Banks own(view, call.bank());
  RankSet missing;
  for (uint32_t source = 0; source < view.spec.num_ranks; ++source)
    if (!call.absent.contains(source) &&
        header_epoch(m.template load_acquire<Signal::kHeader>(own.header + source)) != call.epoch)
      missing.insert(source);
  return missing;
}

/// For signals that only this rank itself owes.
struct NobodyElse {
  MEGAMOE_HD RankSet operator()() const { return {}; }
};

}  // namespace megamoe::protocol
