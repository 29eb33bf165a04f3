// The sentence about a schedule that `megamoe plan` prints.
#include "backends/describe_schedule.h"

#include <fmt/format.h>

namespace megamoe::backends {

void describe_schedule(BackendPlan& plan) {
  const protocol::ScheduleSpec& s = plan.schedule;
  const protocol::WorkspaceSpec& w = plan.workspace;
  const std::string lag = s.lag_units >= kLagOfAllUnits
                              ? "all units"
                              : fmt::format("{} {}", s.lag_units, s.lag_units == 1 ? "unit" : "units");
  LayerPlan& report = plan.report;
  report.schedule = fmt::format(
      "Tiles are taken by ticket. Up to {} blocks of an expert (a unit) share a pass over its weights: for each of {} "
      "column tiles of the first GEMM, all blocks; the second GEMM ({} column tiles) of a unit follows {} behind the "
      "first. At most {} blocks of tokens and {} of activations are held at a time.",
      s.unit_blocks, s.num_l1_tiles, s.num_l2_tiles, lag, w.token_ring_blocks, w.act_ring_blocks);
  report.block_rows = w.block_m;
  report.token_ring_blocks = w.token_ring_blocks;
  report.act_ring_blocks = w.act_ring_blocks;
  report.unit_blocks = s.unit_blocks;
  report.lag_units = s.lag_units;
}

}  // namespace megamoe::backends
