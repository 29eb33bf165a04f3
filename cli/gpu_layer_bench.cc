// Loops over what was asked for; the timing itself is in bench/.
#include "cli/gpu_layer_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>

#include "bench/gpu_bench.h"
#include "cli/bench_row.h"
#include "cli/json_writer.h"
#include "cli/router.h"
#include "cli/text_format.h"

namespace megamoe::cli {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

/// One figure, and what it belongs to.
struct GpuRow {
  const api::ModelPreset* model = nullptr;
  const Routing* routing = nullptr;
  std::string hardware;
  uint32_t num_ranks = 1;
  uint32_t num_gpus = 1;
  uint32_t forced_block_rows = 0;
  bench::Measurement measurement;
  bench::Timing timing;

  double median_us() const { return timing.sorted_us[timing.sorted_us.size() / 2]; }
  bool reads_longest() const { return timing.load.weights_us >= timing.load.gemm_us; }
  double floor_us() const { return std::max(timing.load.weights_us, timing.load.gemm_us); }
  std::string_view floor_kind() const { return reads_longest() ? "weight_read" : "gemm"; }
};

/// The keys of bench/results, in their order; and the rows of a block where they were chosen by the caller.
void write_figure(JsonWriter& json, const GpuRow& row) {
  const MoeShape& shape = row.model->shape;
  json.key("date").text(date_text());
  json.key("commit").text(commit_text());
  json.key("hardware").text(row.hardware);
  json.key("model").text(row.model->name);
  json.key("ranks").whole(row.num_ranks);
  json.key("gpus").whole(row.num_gpus);
  json.key("experts_per_rank").whole(shape.num_experts / row.num_ranks);
  json.key("top_k").whole(shape.top_k);
  json.key("tokens_per_rank").whole(row.measurement.tokens_per_rank);
  json.key("protocol").text(bench::name(row.measurement.protocol));
  json.key("routing").text(row.routing->text);
  json.key("input").text(bench::name(row.measurement.input));
  json.key("median_us").real(row.median_us());
  json.key("min_us").real(row.timing.sorted_us.front());
  json.key("max_us").real(row.timing.sorted_us.back());
  json.key("floor_us").real(row.floor_us());
  json.key("floor_kind").text(row.floor_kind());
  json.key("rows_max_over_mean").real(row.timing.load.rows_max_over_mean);
  if (row.forced_block_rows != 0) json.key("block_rows").whole(row.forced_block_rows);
}

Status append(std::FILE* file, const std::string& path, const GpuRow& row) {
  JsonWriter json;
  json.begin_object();
  write_figure(json, row);
  json.end_object();
  if (std::fprintf(file, "%s\n", json.str().c_str()) > 0 && std::fflush(file) == 0) return {};
  return {Code::kInternal, fmt::format("megamoe bench --append: the file must take a line, got an error from {}: {}",
                                       path, std::strerror(errno))};
}

void print_row(const GpuRow& row, bool as_json) {
  JsonWriter json;
  begin_answer(json, "bench", Verdict::kOk);
  json.key("bench").text("layer");
  json.key("backend").text(row.timing.plan.backend);
  write_figure(json, row);
  json.end_object();
  print_json(json);
  if (as_json) return;
  const MoeShape& shape = row.model->shape;
  const double rows = static_cast<double>(row.measurement.tokens_per_rank) * row.num_ranks * shape.top_k;
  const double tflops = 6.0 * rows * shape.hidden * shape.intermediate / row.median_us() * 1e-6;
  fmt::print(stderr,
             "{:<16}{:>8} {:<5}{:<8}{:<10}{:>10.1f}{:>10.1f}{:>10.1f}{:>9.0f}{:>10.1f} {:<12}{:>7.2f}{:>10.0f}\n",
             row.model->name, row.measurement.tokens_per_rank, bench::name(row.measurement.input),
             bench::name(row.measurement.protocol), row.routing->text, row.median_us(), row.timing.sorted_us.front(),
             row.timing.sorted_us.back(), tflops, row.floor_us(), row.floor_kind(), row.median_us() / row.floor_us(),
             row.timing.plan.predicted_us);
}

/// Fresh routing for every call: the tokens of call n follow those of call n - 1.
bench::Route make_route(Router& router, uint32_t top_k) {
  return [&router, top_k, ids = std::vector<int64_t>(top_k)](uint64_t call, std::span<int32_t> out) mutable {
    const uint64_t tokens = out.size() / top_k;
    for (uint64_t token = 0; token < tokens; ++token) {
      router.draw(call * tokens + token, ids.data());
      std::copy(ids.begin(), ids.end(), out.begin() + static_cast<ptrdiff_t>(token * top_k));
    }
  };
}

Status bench_model(const BenchOptions& options, const api::ModelPreset& model, std::FILE* file, bool as_json) {
  bench::Subject subject;
  subject.config = layer_config(options.execution, model.shape, model.clamp, 1);
  subject.gpus.assign(options.execution.num_ranks, 0);
  subject.most_tokens = *std::max_element(options.random.tokens.begin(), options.random.tokens.end());
  subject.seed = options.random.seed;
  auto bench = bench::GpuBench::create(subject);
  if (!bench.ok()) return bench.status();
  GpuRow row;
  row.model = &model;
  row.hardware = bench.value()->hardware();
  row.num_ranks = options.execution.num_ranks;
  row.forced_block_rows = options.execution.block_rows;
  row.num_gpus = static_cast<uint32_t>(std::set<int32_t>(subject.gpus.begin(), subject.gpus.end()).size());
  if (!as_json) {
    fmt::print(stderr, "{}: hidden {}, intermediate {}, {} experts, top-{}, {} on {}, {}\n", model.name,
               model.shape.hidden, model.shape.intermediate, model.shape.num_experts, model.shape.top_k,
               counted(row.num_ranks, "rank"), counted(row.num_gpus, "GPU"), row.hardware);
    fmt::print(stderr, "{:<16}{:>8} {:<5}{:<8}{:<10}{:>10}{:>10}{:>10}{:>9}{:>10} {:<12}{:>7}{:>10}\n", "model",
               "tokens", "in", "how", "routing", "median us", "min us", "max us", "TFLOPS", "floor us", "floor",
               "x floor", "predicted");
  }
  for (const uint32_t tokens : options.random.tokens) {
    for (const Routing& routing : options.gpu.routings) {
      Router router(model.shape, options.execution.num_ranks, routing, options.random.seed);
      const bench::Route route = make_route(router, model.shape.top_k);
      row.routing = &routing;
      for (const bench::TokenInput input : options.gpu.inputs) {
        for (const bench::Protocol protocol : options.gpu.protocols) {
          row.measurement = {protocol, input, tokens, options.num_repeats};
          auto timing = bench.value()->time(row.measurement, route);
          if (!timing.ok()) return timing.status();
          row.timing = std::move(timing).value();
          print_row(row, as_json);
          if (file != nullptr) MEGAMOE_RETURN_IF_ERROR(append(file, options.gpu.append, row));
        }
      }
    }
  }
  return {};
}

}  // namespace

Result<Verdict> bench_gpu_layer(const BenchOptions& options, bool as_json) {
  File file;
  if (!options.gpu.append.empty()) {
    file.reset(std::fopen(options.gpu.append.c_str(), "a"));
    if (file == nullptr)
      return Status(Code::kInvalidArgument,
                    fmt::format("megamoe bench --append: the file must be writable, got {} ({}); choose another",
                                options.gpu.append, std::strerror(errno)));
  }
  for (const api::ModelPreset& model : options.gpu.models)
    MEGAMOE_RETURN_IF_ERROR(bench_model(options, model, file.get(), as_json));
  return Verdict::kOk;
}

}  // namespace megamoe::cli
