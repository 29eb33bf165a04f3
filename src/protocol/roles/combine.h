// The combine role: a token is summed as soon as all experts that it chose are done.
#pragma once

#include "protocol/wait.h"

namespace megamoe::protocol {

/// Takes groups of tokens by ticket and combines each token once its experts are done.
/// Order: acquires expert_done of every live slot; pairs with finish_l2_tile on the owner.
/// @param id_at  id_at(token, slot): the expert, or -1 for a masked slot
/// @param sum    sum(token) adds the live slots' rows and writes the output row
template <Machine M, class IdAt, class Sum>
MEGAMOE_HD WaitResult combine_tokens(M& m, const RankView& view, const Call& call, uint32_t worker, uint32_t num_tokens,
                                     IdAt id_at, Sum sum) {
  constexpr uint32_t kGroupTokens = 8;
  const Banks own(view, call.bank());
  const uint32_t* done = view.layout.expert_done.in(view.own());
  const uint32_t top_k = view.spec.shape.top_k;
  const auto expert_done = [&](int64_t expert, uint64_t& seen) {
    seen = m.template load_acquire<Signal::kExpertDone>(const_cast<uint32_t*>(done) + expert);
    return seen == call.epoch;
  };
  for (;;) {
    const uint64_t first =
        uint64_t{m.template add_relaxed<Signal::kCombineTicket>(own.tickets + kCombineTicketIndex, 1)} * kGroupTokens;
    if (first >= num_tokens) return WaitResult::kReady;
    const uint32_t end = core::min(static_cast<uint32_t>(first) + kGroupTokens, num_tokens);
    for (uint32_t token = static_cast<uint32_t>(first); token < end; ++token) {
      for (uint32_t slot = 0; slot < top_k; ++slot) {
        const int64_t expert = id_at(token, slot);
        if (expert < 0) continue;
        const WaitSite site{Signal::kExpertDone, Role::kCombine, worker, static_cast<uint64_t>(expert), call.epoch};
        const WaitResult result = wait_for(
            m, view, call, site, [&](uint64_t& seen) { return expert_done(expert, seen); },
            [&] {
              RankSet missing;
              missing.insert(view.owner_of(static_cast<uint32_t>(expert)));
              return missing;
            });
        if (result != WaitResult::kReady) return result;
      }
      sum(token);
    }
  }
}

}  // namespace megamoe::protocol
