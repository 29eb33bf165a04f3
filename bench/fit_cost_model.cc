// Fits the constants of the SM90 cost model to measured figures and prints the table for cost_model.cc.
// Usage: megamoe_fit_cost_model bench/results/h200_tiles.jsonl
// The file needs cold FP8 figures with uniform routing on one rank, of both block sizes (bench/measure.sh tiles).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "backends/sm90/cost/cost_model.h"
#include "bench/results.h"

namespace {

using megamoe::bench::Figure;
using megamoe::sm90::CallSize;
using megamoe::sm90::KernelCosts;

/// What is fitted, as logarithms: times and rates are positive, and errors are relative.
constexpr std::array kFitted = {
    &KernelCosts::head_us, &KernelCosts::slot_us, &KernelCosts::load_us,           &KernelCosts::full_us,
    &KernelCosts::half_us, &KernelCosts::tile_us, &KernelCosts::read_bytes_per_us, &KernelCosts::combine_bytes_per_us,
    &KernelCosts::tail_us};
using Point = std::array<double, kFitted.size()>;

KernelCosts with(KernelCosts costs, const Point& point) {
  for (size_t i = 0; i < kFitted.size(); ++i) costs.*kFitted[i] = std::exp(point[i]);
  return costs;
}

double relative_error(const Figure& figure, const KernelCosts& costs) {
  CallSize size;
  size.shape = figure.shape;
  size.num_ranks = figure.num_ranks;
  size.tokens_per_rank = figure.tokens_per_rank;
  return predict(size, costs).total_us() / figure.median_us - 1;
}

struct Fit {
  const KernelCosts& start;
  const std::vector<Figure>& figures;
  Point first;

  /// Mean square error; constants that the figures do not decide stay near where they were.
  double operator()(const Point& point) const {
    constexpr double kPull = 1e-4;
    const KernelCosts costs = with(start, point);
    double sum = 0, pull = 0;
    for (const Figure& figure : figures) sum += std::pow(relative_error(figure, costs), 2);
    for (size_t i = 0; i < point.size(); ++i) pull += std::pow(point[i] - first[i], 2);
    return sum / static_cast<double>(figures.size()) + kPull * pull;
  }
};

/// Takes the better of small steps along each axis, ever smaller ones, until none helps.
Point descend(const Fit& fit) {
  Point best = fit.first;
  double lowest = fit(best);
  for (double step = 0.4; step > 1e-4; step *= 0.7) {
    for (int round = 0; round < 60; ++round) {
      const double before = lowest;
      for (size_t i = 0; i < best.size(); ++i) {
        for (size_t j = 0; j <= i; ++j) {  // pairs too: constants trade against each other
          for (const double a : {-step, step}) {
            for (const double b : {-step, step}) {
              Point next = best;
              next[i] += a;
              if (j != i) next[j] += b;
              const double value = fit(next);
              if (value < lowest) lowest = value, best = next;
            }
          }
        }
      }
      if (before - lowest < 1e-9) break;
    }
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: {} FILE.jsonl\n", argv[0]);
    return 2;
  }
  const auto all = megamoe::bench::read_figures(argv[1]);
  if (!all.ok()) {
    fmt::print(stderr, "error: {}\n", all.status().message());
    return 2;
  }
  for (const KernelCosts& start : megamoe::sm90::kernel_costs()) {
    std::vector<Figure> figures;
    for (const Figure& f : all.value())
      if (f.protocol == "cold" && f.input == "fp8" && f.routing == "uniform" && f.num_ranks == 1 &&
          f.block_rows == start.block_m)
        figures.push_back(f);
    if (figures.empty()) {
      fmt::print(stderr, "error: {} holds no figure with block_rows {}\n", argv[1], start.block_m);
      return 2;
    }
    Fit fit{start, figures, {}};
    for (size_t i = 0; i < kFitted.size(); ++i) fit.first[i] = std::log(start.*kFitted[i]);
    const KernelCosts c = with(start, descend(fit));
    double worst = 0;
    for (const Figure& figure : figures) {
      const double error = relative_error(figure, c);
      worst = std::max(worst, std::abs(error));
      fmt::print(stderr, "{:<6}{:<18}{:>6} tokens: measured {:8.1f} us, predicted {:+5.1f} %\n", c.name, figure.model,
                 figure.tokens_per_rank, figure.median_us, error * 100);
    }
    fmt::print(stderr, "{:<6}largest error {:.1f} %\n", c.name, worst * 100);
    fmt::print(
        "    KernelCosts{{\"{}\", {}, {}, {}, {:.3g}, {:.3g}, {:.3g}, {:.3g}, {:.3g}, {:.3g}, {:.3g}, {:.3g}, "
        "{:.3g}, {:.3g}}},\n",
        c.name, c.block_m, c.extra_m, c.tile_n, c.head_us, c.expert_us, c.slot_us, c.load_us, c.full_us, c.half_us,
        c.tile_us, c.read_bytes_per_us, c.combine_bytes_per_us, c.tail_us);
  }
  return 0;
}
