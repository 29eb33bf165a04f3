// Alternates both sides call by call, so that a disturbance meets both.
#include "cli/gemm_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/gemm_rate.h"
#include "api/machine.h"
#include "api/options.h"
#include "cli/bench_row.h"
#include "cli/json_writer.h"
#include "cli/openblas.h"
#include "cli/progress.h"

namespace megamoe::cli {
namespace {

struct Case {
  std::string_view name;
  api::GemmShape shape;
};
constexpr uint32_t kHidden = 4096;
constexpr uint32_t kIntermediate = 2048;
constexpr Case kCases[] = {
    {"gemm1", {64, 2 * kIntermediate, kHidden}},
    {"gemm2", {64, kHidden, kIntermediate}},
    {"gemm1", {256, 2 * kIntermediate, kHidden}},
    {"gemm2", {256, kHidden, kIntermediate}},
};

/// Over the largest sum: what two orders of FP32 additions may differ by stays far below.
constexpr double kLargestDisagreement = 1e-4;

struct GemmRow {
  const Case* gemm = nullptr;
  uint32_t num_threads = 0;
  std::vector<double> sorted_s;
  // Of OpenBLAS; empty and 0 where it is not installed.
  std::vector<double> blas_sorted_s;
  double ratio = 0;
  double disagreement = 0;
  std::string problem;  ///< Why the row is a mismatch; empty where all is well.

  double flops() const { return 2.0 * gemm->shape.num_rows * gemm->shape.num_columns * gemm->shape.depth; }
  bool has_blas() const { return !blas_sorted_s.empty(); }
};

double median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double disagreement_of(std::span<const float> ours, std::span<const float> theirs) {
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double gap = std::abs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i]));
    largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
    difference = gap > difference || std::isnan(gap) ? gap : difference;
    if (std::isnan(difference)) break;
  }
  return difference / largest;
}

GemmRow time_case(const Case& gemm, const BenchOptions& options, uint32_t num_threads,
                  const std::optional<OpenBlas>& blas) {
  GemmRow row;
  row.gemm = &gemm;
  row.num_threads = num_threads;
  api::GemmRate rate(gemm.shape);
  std::vector<float> blas_sums(blas ? rate.sums().size() : 0);
  const auto ours = [&] { rate.run(num_threads); };
  const auto theirs = [&] {
    blas->multiply(gemm.shape.num_rows, gemm.shape.num_columns, gemm.shape.depth, rate.activations(), rate.weights(),
                   blas_sums);
  };
  Progress progress(fmt::format("{} at {} rows", gemm.name, gemm.shape.num_rows), options.num_repeats + 1);
  std::vector<double> ratios;
  for (uint32_t repeat = 0; repeat <= options.num_repeats; ++repeat) {
    const double our_s = seconds_of(ours);
    const double blas_s = blas ? seconds_of(theirs) : 0;
    progress.advance();
    if (repeat == 0) continue;
    row.sorted_s.push_back(our_s);
    if (!blas) continue;
    row.blas_sorted_s.push_back(blas_s);
    ratios.push_back(blas_s / our_s);
  }
  for (auto* values : {&row.sorted_s, &row.blas_sorted_s, &ratios}) std::sort(values->begin(), values->end());
  if (!blas) return row;
  row.ratio = median(ratios);
  row.disagreement = disagreement_of(rate.sums(), blas_sums);
  const std::string where = fmt::format("megamoe bench: {} at {} rows", gemm.name, gemm.shape.num_rows);
  if (!(row.disagreement <= kLargestDisagreement)) {
    row.problem = fmt::format(
        "{} must give the sums of OpenBLAS to {:.0e} of the largest, got {:.3g}; MEGAMOE_SIMD=scalar tells whether the "
        "instruction level is at fault",
        where, kLargestDisagreement, row.disagreement);
  } else if (options.min_ratio && row.ratio < *options.min_ratio) {
    row.problem = fmt::format(
        "{} must reach {:g} times the rate of OpenBLAS, got {:.3f}; leave the machine to the bench alone and repeat",
        where, *options.min_ratio, row.ratio);
  }
  return row;
}

void print_gemm_json(const GemmRow& row, const Machine& machine, const BenchOptions& options,
                     const Result<OpenBlas>& blas) {
  JsonWriter json;
  begin_bench_row(json, "gemm_vs_openblas", row.problem.empty() ? Verdict::kOk : Verdict::kMismatch, machine);
  json.key("gemm").text(row.gemm->name);
  json.key("rows").whole(row.gemm->shape.num_rows);
  json.key("columns").whole(row.gemm->shape.num_columns);
  json.key("depth").whole(row.gemm->shape.depth);
  json.key("threads").whole(row.num_threads);
  json.key("repeats").whole(row.sorted_s.size());
  json.key("median_us").real(median(row.sorted_s) * 1e6);
  json.key("min_us").real(row.sorted_s.front() * 1e6);
  json.key("max_us").real(row.sorted_s.back() * 1e6);
  json.key("gflops").real(row.flops() / median(row.sorted_s) * 1e-9);
  json.key("openblas").begin_object();
  const auto figure = [&](const char* key, double value) {
    json.key(key);
    row.has_blas() ? json.real(value) : json.null();
  };
  json.key("core");
  blas.ok() ? json.text(blas->core()) : json.null();
  figure("median_us", row.has_blas() ? median(row.blas_sorted_s) * 1e6 : 0);
  figure("gflops", row.has_blas() ? row.flops() / median(row.blas_sorted_s) * 1e-9 : 0);
  json.key("missing");
  blas.ok() ? json.null() : json.text(blas.status().message());
  json.end_object();
  figure("ratio", row.ratio);
  json.key("min_ratio");
  options.min_ratio ? json.real(*options.min_ratio) : json.null();
  figure("disagreement", row.disagreement);
  if (!row.problem.empty()) {
    json.key("error").begin_object();
    json.key("code").text("mismatch");
    json.key("message").text(row.problem);
    json.end_object();
  }
  json.end_object();
  print_json(json);
}

void print_gemm_text(const GemmRow& row) {
  const auto gflops = [&](const std::vector<double>& sorted) { return row.flops() / median(sorted) * 1e-9; };
  const std::string blas = row.has_blas() ? fmt::format("{:>12.1f} {:>8.2f}", gflops(row.blas_sorted_s), row.ratio)
                                          : "           -        -";
  fmt::print(stderr, "{:>12} {:>8} {:>12.1f} {:>12.1f} {}\n", row.gemm->name, row.gemm->shape.num_rows,
             median(row.sorted_s) * 1e6, gflops(row.sorted_s), blas);
}

}  // namespace

Result<Verdict> bench_gemm(const BenchOptions& options, const Machine& machine, bool as_json) {
  MEGAMOE_RETURN_IF_ERROR(api::apply_environment());
  const Result<OpenBlas> loaded = OpenBlas::load();
  if (!loaded.ok() && options.min_ratio) {
    return Status(Code::kNotSupported,
                  fmt::format("megamoe bench --min-ratio: there must be an OpenBLAS to compare with, got none: {}",
                              loaded.status().message()));
  }
  const uint32_t num_threads = options.execution.num_threads != 0 ? options.execution.num_threads : machine.num_cores;
  std::optional<OpenBlas> blas;
  if (loaded.ok()) blas = loaded.value();
  if (blas) blas->set_num_threads(num_threads);
  if (!as_json) {
    fmt::print(stderr, "GEMM alone, hidden {}, intermediate {}, {} threads ({}); {}\n", kHidden, kIntermediate,
               num_threads, api::simd_level(),
               blas ? fmt::format("OpenBLAS sgemm with core {}", blas->core()) : loaded.status().message());
    fmt::print(stderr, "{:>12} {:>8} {:>12} {:>12} {:>12} {:>8}\n", "gemm", "rows", "median us", "GFLOP/s", "OpenBLAS",
               "ratio");
  }
  Verdict verdict = Verdict::kOk;
  std::string problems;
  for (const Case& gemm : kCases) {
    const GemmRow row = time_case(gemm, options, num_threads, blas);
    print_gemm_json(row, machine, options, loaded);
    if (!as_json) print_gemm_text(row);
    if (row.problem.empty()) continue;
    verdict = Verdict::kMismatch;
    if (!as_json) problems += fmt::format("error: {}\n", row.problem);
  }
  fmt::print(stderr, "{}", problems);
  return verdict;
}

}  // namespace megamoe::cli
