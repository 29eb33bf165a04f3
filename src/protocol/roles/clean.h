// The clean role: leave the idle bank zeroed for the next call. Only memory of this rank that no peer writes.
#pragma once

#include "protocol/rank_view.h"

namespace megamoe::protocol {

/// Zeroes the counters of the bank that the next call will use. Runs while the other bank is in use; the bank's last
/// users ended with the previous call, and its next users start after this call, so plain stores suffice.
inline MEGAMOE_HD void clean_idle_bank(const RankView& view, const Call& call) {
  const uint32_t idle = call.bank() ^ 1;
  const Banks bank(view, idle);
  uint32_t* used = view.layout.bank_blocks.in(view.own()) + idle;
  for (uint32_t block = 0; block < *used; ++block) {
    bank.tokens_full[block] = 0;
    bank.acts_full[block] = 0;
    bank.acts_empty[block] = 0;
  }
  for (uint32_t expert = 0; expert < view.spec.local_experts(); ++expert) bank.expert_blocks_done[expert] = 0;
  for (uint32_t i = 0; i < 4; ++i) bank.tickets[i] = 0;
  *used = 0;
}

}  // namespace megamoe::protocol
