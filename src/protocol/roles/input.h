// Making this rank's tokens readable: workers quantise blocks of them, each pullable as soon as it is done.
#pragma once

#include "protocol/wait.h"

namespace megamoe::protocol {

/// Takes input blocks by ticket until none is left.
/// Order: input_full is released at system scope; pairs with pull_rows of every owner.
/// @param fill  fill(first_token, num_tokens) writes input_codes and input_scales of these tokens
template <Machine M, class Fill>
MEGAMOE_HD void fill_input(M& m, const RankView& view, const Call& call, uint32_t num_tokens, Fill fill) {
  constexpr uint32_t kTokens = WorkspaceSpec::kInputBlockTokens;
  const Banks own(view, call.bank());
  for (;;) {
    const uint32_t block = m.template add_relaxed<Signal::kInputTicket>(own.tickets + kInputTicketIndex, 1);
    const uint64_t first = uint64_t{block} * kTokens;
    if (first >= num_tokens) return;
    fill(static_cast<uint32_t>(first), core::min(kTokens, num_tokens - static_cast<uint32_t>(first)));
    m.template store_release<Signal::kInputFull>(view.layout.input_full.in(view.own()) + block, call.epoch);
  }
}

}  // namespace megamoe::protocol
