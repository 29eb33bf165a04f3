// The CPU backend's choices: block rows, ring sizes, unit, lag, threads.
#include "backends/cpu/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/rank_impl.h"
#include "backends/describe_schedule.h"

namespace megamoe::cpu {
namespace {

// Rows share one decode of the weight tile, so more rows are faster; fewer rows start earlier and waste less of a
// block.
constexpr uint32_t kMinBlockRows = 8;
constexpr uint32_t kDefaultMaxBlockRows = 128;
constexpr uint32_t kMaxBlockRows = 256;  // of one GEMM call
constexpr uint32_t kExtraRowsPart = 8;   // of a block: so many further rows in an expert's last one
constexpr uint32_t kDefaultUnitBlocks = 4;
constexpr uint32_t kDefaultLagUnits = 1;
constexpr uint32_t kDefaultRingBlocks = 64;

uint32_t choose_block_rows(const LayerConfig& config, uint32_t num_ranks) {
  const uint64_t rows = uint64_t{num_ranks} * config.max_tokens_per_rank * config.shape.top_k;
  const uint64_t rows_per_expert = core::ceil_div<uint64_t>(rows, config.shape.num_experts);
  const auto bounded = static_cast<uint32_t>(std::min<uint64_t>(rows_per_expert, kDefaultMaxBlockRows));
  return std::clamp(std::bit_ceil(bounded), 2 * kMinBlockRows, kDefaultMaxBlockRows);
}

Status out_of_range(const char* what, uint64_t low, uint64_t high, uint64_t got) {
  return {Code::kInvalidArgument,
          fmt::format("moe_layer.create: {} must be between {} and {}, got {}; 0 chooses", what, low, high, got)};
}

uint32_t threads_of_rank(const LayerConfig& config, uint32_t num_ranks) {
  if (config.num_threads != 0) return config.num_threads;
  return std::max(1u, std::thread::hardware_concurrency() / num_ranks);
}

class CpuBackend final : public backends::Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  Status available(int32_t) const override { return {}; }
  Result<backends::BackendPlan> plan(const LayerConfig& config, uint32_t num_ranks) const override {
    return plan_cpu(config, num_ranks);
  }
  Result<std::unique_ptr<backends::BackendRank>> create(const LayerConfig& config, const backends::BackendPlan& plan,
                                                        std::shared_ptr<SymmetricMemory> group) const override {
    const uint32_t num_workers = threads_of_rank(config, group->num_ranks());
    return std::unique_ptr<backends::BackendRank>(std::make_unique<CpuRank<>>(config, plan, group, num_workers));
  }
};

}  // namespace

Result<backends::BackendPlan> plan_cpu(const LayerConfig& config, uint32_t num_ranks) {
  backends::BackendPlan plan;
  protocol::WorkspaceSpec& w = plan.workspace;
  backends::set_shape(config, num_ranks, w);
  w.block_m = config.block_rows != 0 ? config.block_rows : choose_block_rows(config, num_ranks);
  if (w.block_m < kMinBlockRows || w.block_m > kMaxBlockRows)
    return out_of_range("block_rows", kMinBlockRows, kMaxBlockRows, w.block_m);
  w.extra_m = w.block_m / kExtraRowsPart;
  protocol::ScheduleSpec& s = plan.schedule;
  s.unit_blocks = config.unit_blocks != 0 ? config.unit_blocks : kDefaultUnitBlocks;
  s.lag_units = config.lag_units != 0 ? config.lag_units : kDefaultLagUnits;
  const auto ring_blocks = [&](uint32_t asked) {
    return asked != 0
               ? asked
               : std::max(s.unit_blocks, static_cast<uint32_t>(std::min<uint64_t>(w.max_blocks(), kDefaultRingBlocks)));
  };
  w.token_ring_blocks = ring_blocks(config.token_ring_blocks);
  w.act_ring_blocks = ring_blocks(config.act_ring_blocks);
  for (const uint32_t ring : {w.token_ring_blocks, w.act_ring_blocks})
    if (ring < s.unit_blocks) return out_of_range("ring blocks", s.unit_blocks, w.max_blocks(), ring);
  s.num_l1_tiles = w.intermediate_groups();
  s.num_l2_tiles = w.hidden_groups();
  s.act_ring_blocks = w.act_ring_blocks;
  if (!protocol::Workspace::fits(w) || w.max_blocks() * (s.num_l1_tiles + s.num_l2_tiles) >= UINT32_MAX)
    return Status{
        Code::kInvalidArgument,
        fmt::format(
            "moe_layer.create: rows and tiles of one call must stay below 2^32 and regions below 2^60 bytes, got {} "
            "ranks x {} tokens x top-{}; lower max_tokens_per_rank",
            num_ranks, w.max_tokens, w.shape.top_k)};
  LayerPlan& report = plan.report;
  report.backend = "cpu";
  report.kernel = fmt::format(
      "block {} rows (an expert's last one {}) x 128 columns x 128 deep, E4M3 x E4M3 -> FP32, promoted per 128, "
      "SIMD level {}",
      w.block_m, w.room_m(), simd_level());
  const uint32_t workers = threads_of_rank(config, num_ranks);
  report.roles = {{"dispatch (route, pull, combine)", 1, 0}, {"math (quantise, both GEMMs, combine)", workers, 0}};
  backends::describe_schedule(plan);
  return plan;
}

const backends::Backend& backend() {
  static const CpuBackend kInstance;
  return kInstance;
}

}  // namespace megamoe::cpu
