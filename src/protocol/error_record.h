// What a waiter leaves behind before it gives up, and how peers learn of it.
#pragma once

#include "core/portable.h"
#include "protocol/signal.h"

namespace megamoe::protocol {

/// A set of ranks, up to kMaxRanks.
struct RankSet {
  uint64_t words[2] = {0, 0};

  MEGAMOE_HD constexpr void insert(uint32_t rank) { words[rank / 64] |= uint64_t{1} << (rank % 64); }
  MEGAMOE_HD constexpr bool contains(uint32_t rank) const { return (words[rank / 64] >> (rank % 64) & 1) != 0; }
  MEGAMOE_HD constexpr bool empty() const { return (words[0] | words[1]) == 0; }
};

inline constexpr uint32_t kRecordGaveUp = 1;   ///< ErrorRecord::valid.
inline constexpr uint32_t kRecordLeftOut = 2;  ///< Of ranks in `missing`: they missed calls, and then came to one.

/// One in each rank's workspace; plain memory, written by the first waiter that gives up, published by the abort word.
struct ErrorRecord {
  uint32_t valid = 0;
  uint16_t rank = 0;
  Role role = Role::kDispatch;
  Signal signal = Signal::kAbort;
  uint32_t worker = 0;  ///< Thread (or SM) of the waiter.
  uint32_t epoch = 0;   ///< The call.
  uint64_t index = 0;   ///< Which cell of the signal: a source rank, a block, an expert.
  uint64_t expected = 0;
  uint64_t seen = 0;
  RankSet missing;  ///< Ranks that owe the signal; empty where the waiter's own rank does.
  uint64_t waited_ns = 0;
};
static_assert(sizeof(ErrorRecord) == 64);

/// The abort word: which rank gave up first, in which call. Zero means that nobody did.
MEGAMOE_HD constexpr uint64_t abort_value(uint32_t epoch, uint32_t rank) { return uint64_t{epoch} << 32 | (rank + 1); }
MEGAMOE_HD constexpr uint32_t abort_rank(uint64_t value) { return static_cast<uint32_t>(value & 0xffffffffu) - 1; }
MEGAMOE_HD constexpr uint32_t abort_epoch(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace megamoe::protocol
