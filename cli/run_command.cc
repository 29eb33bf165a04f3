// `megamoe run`: as threads, as processes, or as one rank of a launcher.
#include "api/machine.h"
#include "api/registry.h"
#include "cli/commands.h"
#include "cli/launcher.h"
#include "cli/layer_data.h"
#include "cli/options.h"
#include "cli/process_team.h"
#include "cli/progress.h"
#include "cli/rank_layer.h"
#include "cli/rank_process.h"
#include "cli/rank_team.h"
#include "cli/run_finish.h"
#include "cli/stopwatch.h"
#include "io/buffer.h"

namespace megamoe::cli {
namespace {

/// Runs the layer; fills `report` and returns the output rows.
Result<io::Buffer<uint16_t>> run_threads(const LayerData& data, const RunOptions& options, RunReport& report) {
  auto output = io::Buffer<uint16_t>::allocate(data.inputs.num_tokens * data.shape.hidden, "the output rows");
  if (!output.ok()) return output;
  Stopwatch watch;
  auto devices = rank_devices(options.execution);
  if (!devices.ok()) return devices.status();
  auto team = RankTeam::create(
      layer_config(options.execution, data.shape, data.clamp, data.most_tokens(), data.shared.num_experts),
      devices.value(), data.weights, data.shared);
  if (!team.ok()) return team.status();
  report.times.create_ns = watch.lap_ns();
  {
    const Progress progress("running the layer", 0);
    auto forward_ns = team->forward(data.inputs, data.tokens_per_rank, output->span());
    if (!forward_ns.ok()) return forward_ns.status();
    report.times.forward_ns = forward_ns.value();
  }
  for (uint32_t rank = 0; rank < team->num_ranks(); ++rank) report.times.add_stages(team->last_report(rank));
  report.rows_per_expert = team->rows_per_expert();
  if (data.shared_inputs) {
    auto second = io::Buffer<uint16_t>::allocate(output->size(), "the rows of the shared experts");
    if (!second.ok()) return second.status();
    auto forward_ns = team->forward(*data.shared_inputs, data.tokens_per_rank, second->span());
    if (!forward_ns.ok()) return forward_ns.status();
    report.times.forward_ns += forward_ns.value();
    for (uint32_t rank = 0; rank < team->num_ranks(); ++rank) report.times.add_stages(team->last_report(rank));
    add_rows(second->span(), output->span());
  }
  report.plan = team->plan();
  report.simd = report.plan.backend == "cpu" ? std::string(api::simd_level()) : "none";
  return output;
}

}  // namespace

Result<Verdict> run_command(const Arguments& arguments) {
  auto launched = launched_group();
  if (!launched.ok()) return launched.status();
  if (const auto& group = launched.value(); group) {
    auto verdict = run_rank_process(arguments, run_options(arguments, group->num_ranks), *group);
    if (verdict.ok() || group->rank == 0) return verdict;
    return report_failure("run", verdict.status(), false);  // The JSON is rank 0's.
  }
  auto options = run_options(arguments, {});
  if (!options.ok()) return options.status();
  if (options->execution.as_processes) {
    return run_process_team(options->execution.num_ranks, [&](const ProcessGroupOptions& group) {
      return run_rank_process(arguments, options, group);
    });
  }
  // Before anything is loaded.
  if (const auto backend = api::choose_backend(options->execution.backend); !backend.ok()) return backend.status();
  if (const auto devices = rank_devices(options->execution); !devices.ok()) return devices.status();
  Stopwatch watch;
  auto data = load_layer(options.value(), {0, options->execution.num_ranks});
  if (!data.ok()) return data.status();
  RunReport report = begin_report(data.value(), "threads");
  report.times.load_ns = watch.lap_ns();
  auto output = run_threads(data.value(), options.value(), report);
  if (!output.ok()) return output.status();
  return finish_run(arguments, options.value(), std::move(data).value(), std::move(report), output.value());
}

}  // namespace megamoe::cli
