// Expected counts of blocks and tiles, times the measured cost of each.
#include "backends/sm90/cost/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/integer.h"
#include "protocol/block_cut.h"

namespace megamoe::sm90 {
namespace {

/// Fitted on 2026-12-01 by megamoe_fit_cost_model to bench/results/h200_tiles.jsonl: cold FP8 calls of the slices and
/// of two whole models on one H200 (driver 580.159.04), 8.5% off at most. After the kernel has changed:
/// bench/measure.sh tiles, then the program again; it prints these lines.
constexpr std::array kKernelCosts = {
    KernelCosts{"m64", 64, 0, 256, 25.3, 0.15, 0.551, 0.503, 0.503, 0.574, 1.09, 4.23e+06, 7.78e+05, 8.31},
    KernelCosts{"m128", 128, 16, 256, 34, 0.15, 0.437, 0.642, 0.779, 0.5, 0.589, 4.2e+06, 8.93e+05, 9.01},
};

constexpr double kNvlinkBytesPerUs = 337e3;  ///< Each way, both ways busy; measured between two H200s.
constexpr double kNvlinkStartUs = 10;        ///< Headers and first rows cross the link.
/// Reading and multiplying overlap, but not perfectly where both take equally long.
constexpr double kOverlapPower = 6;

/// What an expert needs, on average over the numbers of rows that it may get.
struct ExpertMean {
  double hit = 0;          ///< Probability of at least one row.
  double units = 0;        ///< Passes over its weights.
  double full_blocks = 0;  ///< Blocks of more than 64 rows (and further ones).
  double half_blocks = 0;
};

/// Rows are binomial: each of `tokens` chooses the expert with probability `chance`.
ExpertMean expert_mean(double tokens, double chance, const protocol::BlockCut& cut, uint32_t unit_blocks) {
  ExpertMean mean;
  const double expected = tokens * chance, spread = std::sqrt(expected * (1 - chance));
  const auto first = static_cast<uint64_t>(std::max(1.0, std::floor(expected - 8 * spread - 2)));
  const auto last = static_cast<uint64_t>(std::min(tokens, std::ceil(expected + 8 * spread + 8)));
  for (uint64_t rows = first; rows <= last; ++rows) {
    const auto n = static_cast<double>(rows);
    double probability = 1;
    if (chance < 1)
      probability = std::exp(std::lgamma(tokens + 1) - std::lgamma(n + 1) - std::lgamma(tokens - n + 1) +
                             n * std::log(chance) + (tokens - n) * std::log1p(-chance));
    else if (rows != last)
      probability = 0;
    const uint32_t blocks = cut.num_blocks(static_cast<uint32_t>(rows));
    const bool has_half = cut.rows_of(blocks - 1, static_cast<uint32_t>(rows)) <= 64 + cut.extra_m;
    mean.hit += probability;
    mean.units += probability * static_cast<double>(core::ceil_div(blocks, unit_blocks));
    mean.full_blocks += probability * static_cast<double>(blocks - (has_half ? 1 : 0));
    mean.half_blocks += probability * (has_half ? 1 : 0);
  }
  return mean;
}

/// The SM with most tiles of one GEMM: at least one whole tile, else an equal share.
double tiles_us(const KernelCosts& kernel, double full, double half, double num_n, double num_k, double num_sms) {
  const double full_us = num_k * std::max(kernel.full_us, kernel.load_us) + kernel.tile_us;
  const double half_us = num_k * std::max(kernel.half_us, kernel.load_us) + kernel.tile_us;
  const double num_tiles = (full + half) * num_n;
  return (full * full_us + half * half_us) * num_n / std::min(num_sms, std::max(num_tiles, 1.0));
}

}  // namespace

std::span<const KernelCosts> kernel_costs() { return kKernelCosts; }

double Prediction::total_us() const {
  double sum = 0;
  for (const double us : {weights_us, tiles_us, nvlink_us}) sum += std::pow(us, kOverlapPower);
  return head_us + std::pow(sum, 1 / kOverlapPower) + tail_us;
}

std::string_view Prediction::bound() const {
  if (nvlink_us > weights_us && nvlink_us > tiles_us) return "NVLink";
  return weights_us >= tiles_us ? "reading weights" : "multiplying";
}

Prediction predict(const CallSize& size, const KernelCosts& kernel) {
  const MoeShape& s = size.shape;
  const double tokens = size.tokens_per_rank, ranks = size.num_ranks, hidden = s.hidden;
  const double experts = static_cast<double>(s.num_experts) / ranks;
  const ExpertMean mean = expert_mean(tokens * ranks, static_cast<double>(s.top_k) / s.num_experts,
                                      protocol::BlockCut{kernel.block_m, kernel.extra_m}, size.unit_blocks);
  Prediction p;
  p.kernel = kernel.name;
  p.rows_per_expert = tokens * ranks * s.top_k / s.num_experts;
  p.experts_hit = mean.hit * experts;
  p.weight_bytes = 3.0 * hidden * s.intermediate * mean.units * experts;
  p.weights_us = p.weight_bytes / kernel.read_bytes_per_us;
  const double full = mean.full_blocks * experts, half = mean.half_blocks * experts;
  const double k1 = s.hidden / kScaleGroup, k2 = core::ceil_div(s.intermediate, kScaleGroup);
  p.tiles_us = tiles_us(kernel, full, half, core::ceil_div(s.intermediate, kernel.tile_n / 2), k1, size.num_sms) +
               tiles_us(kernel, full, half, core::ceil_div(s.hidden, kernel.tile_n), k2, size.num_sms);
  const double slots = tokens * s.top_k;
  if (size.num_ranks > 1) p.nvlink_us = kNvlinkStartUs + slots * (ranks - 1) / ranks * 3 * hidden / kNvlinkBytesPerUs;
  p.head_us = kernel.head_us + kernel.expert_us * (experts - p.experts_hit) + kernel.slot_us * slots / 1024;
  p.tail_us = kernel.tail_us + 2 * hidden * (slots + tokens) / kernel.combine_bytes_per_us;
  return p;
}

Prediction choose_kernel(const CallSize& size, uint32_t block_m) {
  Prediction best;
  for (const KernelCosts& kernel : kKernelCosts) {
    if (block_m != 0 && kernel.block_m != block_m) continue;
    const Prediction p = predict(size, kernel);
    if (best.kernel.empty() || p.total_us() < best.total_us()) best = p;
  }
  return best;
}

std::string explain(const CallSize& size, uint32_t block_m) {
  const Prediction best = choose_kernel(size, block_m);
  std::string others;
  for (const KernelCosts& kernel : kKernelCosts)
    if (kernel.name != best.kernel)
      others +=
          fmt::format("{}{} {:.0f} us", others.empty() ? "" : ", ", kernel.name, predict(size, kernel).total_us());
  const std::string links = size.num_ranks > 1 ? fmt::format(", NVLink {:.0f} us", best.nvlink_us) : std::string();
  return fmt::format(
      "{} {}, predicted {:.0f} us a call ({}), with {} tokens on each rank, a GPU of {} SMs for each, uniform routing: "
      "{:.1f} rows an expert, {:.1f} experts of a rank hit. Head {:.0f} us; then, side by side, reading {:.0f} MB of "
      "weights {:.0f} us, tiles {:.0f} us{}; tail {:.0f} us. Bound by {}.",
      best.kernel, block_m != 0 ? "as asked for" : "has the shortest time", best.total_us(), others,
      size.tokens_per_rank, size.num_sms, best.rows_per_expert, best.experts_hit, best.head_us, best.weight_bytes / 1e6,
      best.weights_us, best.tiles_us, links, best.tail_us, best.bound());
}

}  // namespace megamoe::sm90
