// The protocol side of the load and math roles: what a tile waits for, and what it tells when it is finished.
#pragma once

#include "protocol/wait.h"

namespace megamoe::protocol {

/// Waits for the plan of this call. Pairs with publish_plan in roles/dispatch.h. Where there is no plan because a rank
/// has not come, that rank is named.
template <Machine M>
MEGAMOE_HD WaitResult wait_plan(M& m, const RankView& view, const Call& call, Role role, uint32_t worker) {
  const WaitSite site{Signal::kPlanReady, role, worker, 0, call.epoch};
  return wait_for(
      m, view, call, site,
      [&](uint64_t& seen) {
        seen = m.template load_acquire<Signal::kPlanReady>(view.layout.plan_ready.in(view.own()));
        return seen == call.epoch;
      },
      [&] { return missing_headers(m, view, call); });
}

/// Waits until counter[index] has reached `expected`.
template <Signal kSignal, Machine M>
MEGAMOE_HD WaitResult wait_count(M& m, const RankView& view, const Call& call, uint32_t worker, uint32_t* counter,
                                 uint32_t index, uint32_t expected) {
  const WaitSite site{kSignal, Role::kMath, worker, index, expected};
  return wait_for(
      m, view, call, site,
      [&](uint64_t& seen) {
        seen = m.template load_acquire<kSignal>(counter + index);
        return seen >= expected;
      },
      NobodyElse{});
}

/// An L1 tile may start: all rows of its block have arrived (pairs with pull_rows), and the block that held its slot of
/// the activation ring has left (pairs with finish_l2_tile).
template <Machine M>
MEGAMOE_HD WaitResult wait_l1_inputs(M& m, const RankView& view, const Call& call, uint32_t worker, const Tile& tile,
                                     uint32_t num_rows) {
  const Banks own(view, call.bank());
  const BlockRing ring = view.act_ring();
  if (ring.has_previous(tile.block)) {
    const WaitResult result = wait_count<Signal::kActsEmpty>(m, view, call, worker, own.acts_empty,
                                                             ring.previous(tile.block), view.schedule.num_l2_tiles);
    if (result != WaitResult::kReady) return result;
  }
  return wait_count<Signal::kTokensFull>(m, view, call, worker, own.tokens_full, tile.block, num_rows);
}

/// An L2 tile may start: all L1 tiles of its block are finished (pairs with finish_l1_tile).
template <Machine M>
MEGAMOE_HD WaitResult wait_l2_inputs(M& m, const RankView& view, const Call& call, uint32_t worker, const Tile& tile) {
  const Banks own(view, call.bank());
  return wait_count<Signal::kActsFull>(m, view, call, worker, own.acts_full, tile.block, view.schedule.num_l1_tiles);
}

/// Publishes the activations of an L1 tile, and that it no longer reads its token rows.
/// Order: acts_full is released at rank scope; pairs with wait_l2_inputs and with pull_rows.
template <Machine M>
MEGAMOE_HD void finish_l1_tile(M& m, const RankView& view, const Call& call, const Tile& tile) {
  const Banks own(view, call.bank());
  m.template add_release<Signal::kActsFull>(own.acts_full + tile.block, 1);
}

/// Publishes an L2 tile whose rows lie in their source ranks. The last tile of an expert tells every source that sent
/// it rows. Order: acts_empty and expert_blocks_done are acquire-release at rank scope, so the last one has acquired
/// every tile's remote rows; expert_done is then released at system scope; pairs with wait_l1_inputs and with
/// combine_tokens.
template <Machine M>
MEGAMOE_HD void finish_l2_tile(M& m, const RankView& view, const Call& call, const Tile& tile) {
  const Banks own(view, call.bank());
  if (m.template add_acq_rel<Signal::kActsEmpty>(own.acts_empty + tile.block, 1) + 1 != view.schedule.num_l2_tiles)
    return;
  const uint32_t num_blocks = view.pool_plan().blocks_of(tile.local_expert);
  if (m.template add_acq_rel<Signal::kExpertBlocksDone>(own.expert_blocks_done + tile.local_expert, 1) + 1 !=
      num_blocks)
    return;
  const uint32_t local = view.spec.local_experts(), expert = view.first_expert() + tile.local_expert;
  for (uint32_t n = 0; n < view.spec.num_ranks; ++n) {
    const uint32_t source = nth_source(view.rank, n, view.spec.num_ranks);
    if (own.slot_ranges[uint64_t{source} * local + tile.local_expert].num_rows == 0) continue;
    m.template store_release<Signal::kExpertDone>(view.layout.expert_done.in(view.base(source)) + expert, call.epoch);
  }
}

/// Runs tiles by ticket until the schedule ends.
/// @param compute  l1_tile(tile, num_rows) and l2_tile(tile, num_rows) do the arithmetic; both are complete when they
/// return
template <Machine M, class Compute>
MEGAMOE_HD WaitResult run_tiles(M& m, const RankView& view, const Call& call, uint32_t worker, Compute& compute) {
  const Banks own(view, call.bank());
  const PoolPlan plan = view.pool_plan();
  BlockSchedule schedule(view.schedule, plan);
  for (;;) {
    Tile tile;
    if (!schedule.at(m.template add_relaxed<Signal::kTileTicket>(own.tickets + kTileTicketIndex, 1), tile))
      return WaitResult::kReady;
    const uint32_t num_rows = tile.num_rows;
    const bool is_l1 = tile.phase == Phase::kL1;
    const WaitResult result =
        is_l1 ? wait_l1_inputs(m, view, call, worker, tile, num_rows) : wait_l2_inputs(m, view, call, worker, tile);
    if (result != WaitResult::kReady) return result;
    if (is_l1) {
      compute.l1_tile(tile, num_rows);
      finish_l1_tile(m, view, call, tile);
    } else {
      compute.l2_tile(tile, num_rows);
      finish_l2_tile(m, view, call, tile);
    }
  }
}

}  // namespace megamoe::protocol
