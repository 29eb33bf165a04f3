// One rank's sight of the group: the layout, and where every rank's copy of it is mapped.
#pragma once

#include "protocol/ring.h"
#include "protocol/schedule.h"
#include "protocol/workspace.h"

namespace megamoe::protocol {

struct RankView {
  WorkspaceSpec spec;
  ScheduleSpec schedule;
  Workspace layout;
  char* flat_base = nullptr;  ///< Rank r's workspace is mapped at flat_base + r * stride_bytes.
  uint64_t stride_bytes = 0;
  uint32_t rank = 0;

  MEGAMOE_HD void* base(uint32_t of_rank) const { return flat_base + of_rank * stride_bytes; }
  MEGAMOE_HD void* own() const { return base(rank); }
  /// The same element in another rank's workspace. Precondition: `own_pointer` lies in this rank's workspace.
  template <class T>
  MEGAMOE_HD T* map(T* own_pointer, uint32_t to_rank) const {
    const uint64_t offset = static_cast<uint64_t>(reinterpret_cast<char*>(own_pointer) - static_cast<char*>(own()));
    return reinterpret_cast<T*>(static_cast<char*>(base(to_rank)) + offset);
  }

  MEGAMOE_HD uint32_t first_expert() const { return rank * spec.local_experts(); }
  MEGAMOE_HD uint32_t owner_of(uint32_t expert) const { return expert / spec.local_experts(); }
  MEGAMOE_HD BlockRing token_ring() const { return {spec.token_ring_blocks}; }
  MEGAMOE_HD BlockRing act_ring() const { return {spec.act_ring_blocks}; }

  MEGAMOE_HD PoolPlan pool_plan() const {
    return {layout.expert_first_block.in(own()), layout.expert_num_rows.in(own()), layout.source_first_row.in(own()),
            spec.local_experts(), spec.cut()};
  }
};

/// What distinguishes one call from the next.
struct Call {
  uint32_t epoch = 0;       ///< 1 for the first call; wraps after 2^32 - 1 calls to 1 by reset.
  uint64_t timeout_ns = 0;  ///< Of every single wait.
  RankSet absent;           ///< Ranks that do not take part: not waited for, not written to.

  MEGAMOE_HD uint32_t bank() const { return epoch & 1; }
};

/// Pointers into the banks that one call uses.
struct Banks {
  uint64_t* header;              // [num_ranks]
  SlotRange* slot_ranges;        // [num_ranks][local_experts]
  Refusal* refusal;              // [num_ranks]
  uint32_t* tokens_full;         // [max_blocks]
  uint32_t* acts_full;           // [max_blocks]
  uint32_t* acts_empty;          // [max_blocks]
  uint32_t* expert_blocks_done;  // [local_experts]
  uint32_t* tickets;             // [4]

  MEGAMOE_HD Banks(const RankView& v, uint32_t bank) {
    void* own = v.own();
    const uint64_t ranks = v.spec.num_ranks, local = v.spec.local_experts(), blocks = v.spec.max_blocks();
    header = v.layout.header.in(own) + bank * ranks;
    slot_ranges = v.layout.slot_ranges.in(own) + bank * ranks * local;
    refusal = v.layout.refusal.in(own) + bank * ranks;
    tokens_full = v.layout.tokens_full.in(own) + bank * blocks;
    acts_full = v.layout.acts_full.in(own) + bank * blocks;
    acts_empty = v.layout.acts_empty.in(own) + bank * blocks;
    expert_blocks_done = v.layout.expert_blocks_done.in(own) + bank * local;
    tickets = v.layout.tickets.in(own) + uint64_t{bank} * 4;
  }
};

inline constexpr uint32_t kTileTicketIndex = 0;
inline constexpr uint32_t kInputTicketIndex = 1;
inline constexpr uint32_t kCombineTicketIndex = 2;

}  // namespace megamoe::protocol
