// Why a rank refuses a call before anything is moved. Travels with the header, so that every rank gives the same
// reason.
#pragma once

#include "core/portable.h"

namespace megamoe::protocol {

enum class RefusalKind : uint32_t {
  kNone = 0,
  kIdOutOfRange,   ///< token, slot, value: a top-k id that is neither -1 nor below `limit`.
  kMapOutOfRange,  ///< token, slot, value: entry [logical expert, copy] of the expert map, neither -1 nor below
                   ///< `limit`.
  kText,           ///< Anything the host found; `text` is the sentence.
};

struct Refusal {
  RefusalKind kind = RefusalKind::kNone;
  uint32_t code = 0;  ///< megamoe::Code.
  uint32_t token = 0;
  uint32_t slot = 0;
  int64_t value = 0;
  uint32_t limit = 0;  ///< How many experts there are.
  uint32_t reserved = 0;
  char text[224] = {};  ///< Zero-terminated; longer sentences are cut.
};
static_assert(sizeof(Refusal) == 256);

/// The header cell that a source publishes to every owner: the call's epoch, and flags.
inline constexpr uint64_t kHeaderRefused = 1;     ///< Read the refusal; the call does not happen on any rank.
inline constexpr uint64_t kHeaderInputReady = 2;  ///< All input rows are readable; input_full is not used in this call.

MEGAMOE_HD constexpr uint64_t header_value(uint32_t epoch, uint64_t flags) { return uint64_t{epoch} << 32 | flags; }
MEGAMOE_HD constexpr uint32_t header_epoch(uint64_t cell) { return static_cast<uint32_t>(cell >> 32); }

}  // namespace megamoe::protocol
