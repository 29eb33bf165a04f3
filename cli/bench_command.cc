// `megamoe bench`: times the whole layer and sets the machine's own floor beside every figure; then the GEMM alone.
#include <fmt/format.h>

#include <algorithm>

#include "api/machine.h"
#include "cli/bench_row.h"
#include "cli/commands.h"
#include "cli/gemm_bench.h"
#include "cli/gpu_layer_bench.h"
#include "cli/layer_data.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/rank_team.h"
#include "cli/text_format.h"
#include "io/buffer.h"

namespace megamoe::cli {
namespace {

/// Calls follow each other at once, over one set of weights and tokens, after one call that is not counted.
constexpr std::string_view kProtocol = "back_to_back";

struct Row {
  uint32_t tokens_per_rank = 0;
  std::vector<uint64_t> sorted_ns;
  uint64_t rows = 0;
  uint64_t experts_hit = 0;
  double weights_us = 0;  ///< The bytes of the experts hit at the read rate.
  double compute_us = 0;  ///< The multiply-adds at the FMA rate.

  double median_us() const { return static_cast<double>(sorted_ns[sorted_ns.size() / 2]) / 1e3; }
  double floor_us() const { return std::max(weights_us, compute_us); }
  std::string_view floor_kind() const { return weights_us >= compute_us ? "weight_read" : "multiply_add"; }
};

void add_floors(const MoeShape& shape, const MachineRates& rates, const std::vector<uint64_t>& rows_per_expert,
                Row& row) {
  const double macs_per_row = 3.0 * shape.hidden * shape.intermediate;
  for (const uint64_t rows : rows_per_expert) {
    row.rows += rows;
    row.experts_hit += rows > 0 ? 1 : 0;
  }
  row.weights_us = macs_per_row * static_cast<double>(row.experts_hit) / rates.read_bytes_per_s * 1e6;
  row.compute_us = macs_per_row * static_cast<double>(row.rows) / rates.fma_per_s * 1e6;
}

Result<Row> time_tokens(const BenchOptions& options, uint32_t tokens, const MachineRates& rates, RankTeam& team) {
  const std::vector<uint32_t> tokens_per_rank(options.execution.num_ranks, tokens);
  auto inputs = make_random_inputs(options.model.shape, tokens_per_rank, {0, options.execution.num_ranks},
                                   options.random.routing, options.random.seed);
  if (!inputs.ok()) return inputs.status();
  auto output = io::Buffer<uint16_t>::allocate(inputs->num_tokens * options.model.shape.hidden, "the output rows");
  if (!output.ok()) return output.status();
  Row row;
  row.tokens_per_rank = tokens;
  Progress progress(fmt::format("{} tokens per rank", tokens), options.num_repeats + 1);
  for (uint32_t repeat = 0; repeat <= options.num_repeats; ++repeat) {
    auto ns = team.forward(inputs.value(), tokens_per_rank, output->span());
    if (!ns.ok()) return ns.status();
    if (repeat > 0) row.sorted_ns.push_back(ns.value());
    progress.advance();
  }
  std::sort(row.sorted_ns.begin(), row.sorted_ns.end());
  add_floors(options.model.shape, rates, team.rows_per_expert(), row);
  return row;
}

void print_row_json(const BenchOptions& options, const Machine& machine, const MachineRates& rates,
                    const RankTeam& team, const Row& row) {
  JsonWriter json;
  begin_bench_row(json, "layer", Verdict::kOk, machine);
  json.key("backend").text(team.plan().backend);
  json.key("model").text(options.model.name);
  json.key("shape");
  write_shape(json, options.model.shape);
  json.key("ranks").whole(options.execution.num_ranks);
  json.key("tokens_per_rank").whole(row.tokens_per_rank);
  json.key("routing").text(options.random.routing.text);
  json.key("rows").whole(row.rows);
  json.key("experts_hit").whole(row.experts_hit);
  json.key("protocol").text(kProtocol);
  json.key("repeats").whole(row.sorted_ns.size());
  json.key("median_us").real(row.median_us());
  json.key("min_us").real(static_cast<double>(row.sorted_ns.front()) / 1e3);
  json.key("max_us").real(static_cast<double>(row.sorted_ns.back()) / 1e3);
  json.key("floor_us").real(row.floor_us());
  json.key("floor_kind").text(row.floor_kind());
  json.key("read_bytes_per_s").real(rates.read_bytes_per_s);
  json.key("fma_per_s").real(rates.fma_per_s);
  json.end_object();
  print_json(json);
}

void print_row_text(const Row& row) {
  const double ratio = row.floor_us() > 0 ? row.median_us() / row.floor_us() : 0;
  fmt::print(stderr, "{:>12} {:>8} {:>12.1f} {:>12.1f} {:>12.1f} {:>12.1f} {:>13} {:>8.2f}\n", row.tokens_per_rank,
             row.rows, row.median_us(), static_cast<double>(row.sorted_ns.front()) / 1e3,
             static_cast<double>(row.sorted_ns.back()) / 1e3, row.floor_us(), row.floor_kind(), ratio);
}

Status bench_layer(const BenchOptions& options, const Machine& machine, bool as_json) {
  const std::vector<uint32_t> sweep = options.random.tokens;
  const uint32_t most_tokens = *std::max_element(sweep.begin(), sweep.end());

  RandomChoice no_tokens = options.random;
  no_tokens.tokens = {0};
  auto data = make_random_layer(options.model, options.execution, no_tokens, {0, options.execution.num_ranks});
  if (!data.ok()) return data.status();
  auto team = RankTeam::create(layer_config(options.execution, data->shape, data->clamp, most_tokens), {},
                               data->weights, data->shared);
  if (!team.ok()) return team.status();
  const MachineRates rates = measure_machine(machine.num_cores);
  if (!as_json) {
    fmt::print(stderr, "{}: {} on {} ({}), reads {:.1f} GB/s, {:.1f} G multiply-adds/s measured\n", data->title,
               counted(options.execution.num_ranks, "rank"), machine.cpu_model, api::simd_level(),
               rates.read_bytes_per_s / 1e9, rates.fma_per_s / 1e9);
    fmt::print(stderr, "{:>12} {:>8} {:>12} {:>12} {:>12} {:>12} {:>13} {:>8}\n", "tokens/rank", "rows", "median us",
               "min us", "max us", "floor us", "floor", "x floor");
  }
  for (const uint32_t tokens : sweep) {
    auto row = time_tokens(options, tokens, rates, team.value());
    if (!row.ok()) return row.status();
    print_row_json(options, machine, rates, team.value(), row.value());
    if (!as_json) print_row_text(row.value());
  }
  return {};
}

}  // namespace

Result<Verdict> bench_command(const Arguments& arguments) {
  auto options = bench_options(arguments);
  if (!options.ok()) return options.status();
  if (options->execution.backend == "cuda") return bench_gpu_layer(options.value(), arguments.json);
  const Machine machine = describe_machine();
  if (options->times_layer) MEGAMOE_RETURN_IF_ERROR(bench_layer(options.value(), machine, arguments.json));
  if (!options->times_gemm) return Verdict::kOk;
  return bench_gemm(options.value(), machine, arguments.json);
}

}  // namespace megamoe::cli
