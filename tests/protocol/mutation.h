// The ways in which tests break the protocol, one at a time: what is done wrong, to which signal.
#pragma once

#include <string>

#include "protocol/signal.h"

namespace megamoe::test {

using protocol::Signal;

enum class Break : uint8_t {
  kNothing,
  kReleaseRelaxed,  ///< The write publishes nothing.
  kAcquireRelaxed,  ///< The read acquires nothing.
  kDropped,         ///< The store or addition does not happen.
  kDoubled,         ///< The addition counts twice.
  kSeenEarly,       ///< The reader expects one less than it should.
  kNoWait,          ///< The reader does not wait at all.
  kNoRingWait,      ///< The same, only where the dispatch role waits for room in the token ring.
  kOtherBank,       ///< The reader (for tickets: the taker) looks into the bank of the other call.
  kNotCleaned,      ///< The clean role leaves the idle bank's cells (header: an absent rank's ranges) as they are.
  kFlagBeforeData,  ///< The signal is raised before the bytes that it announces are written.
};

constexpr const char* name(Break kind) {
  constexpr const char* kNames[] = {"sound",        "release -> relaxed", "acquire -> relaxed", "dropped",
                                    "doubled add",  "off by one",         "missing wait",       "missing ring wait",
                                    "swapped bank", "skipped reset",      "flag before data"};
  return kNames[static_cast<uint32_t>(kind)];
}

struct Mutation {
  Break kind = Break::kNothing;
  Signal signal = Signal::kCount;

  bool operator==(const Mutation&) const = default;
};

inline std::string to_string(const Mutation& mutation) {
  if (mutation.kind == Break::kNothing) return name(mutation.kind);
  return std::string(protocol::name(mutation.signal)) + ": " + name(mutation.kind);
}

}  // namespace megamoe::test
