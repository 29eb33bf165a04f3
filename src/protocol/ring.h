// Ring buffers of pool blocks. Blocks are numbered without end inside a call; a ring has fewer slots than there are
// blocks.
#pragma once

#include "core/portable.h"

namespace megamoe::protocol {

/// Block b lives in slot b % num_slots, and may be written once block b - num_slots has left. Full and empty are
/// counted per block, not per slot, so a waiter never confuses two generations of a slot.
struct BlockRing {
  uint32_t num_slots = 0;

  MEGAMOE_HD constexpr uint32_t slot(uint32_t block) const { return block % num_slots; }
  MEGAMOE_HD constexpr bool has_previous(uint32_t block) const { return block >= num_slots; }
  /// The block whose departure makes room. Precondition: has_previous(block).
  MEGAMOE_HD constexpr uint32_t previous(uint32_t block) const { return block - num_slots; }
};

/// Position in a ring of mbarrier-guarded stages: the index and the phase travel together.
struct RingState {
  uint32_t index = 0;
  uint32_t phase = 0;

  /// A producer starts one phase ahead: its first wait on "empty" must pass at once.
  static MEGAMOE_HD constexpr RingState producer_start() { return {0, 1}; }

  MEGAMOE_HD constexpr void advance(uint32_t num_stages) {
    if (++index == num_stages) {
      index = 0;
      phase ^= 1;
    }
  }
};

}  // namespace megamoe::protocol
