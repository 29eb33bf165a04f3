// The SM90 backend's choices: kernel, ring sizes, schedule.
#include "backends/sm90/backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "backends/describe_schedule.h"
#include "backends/sm90/cost/cost_model.h"
#include "backends/sm90/driver.h"
#include "backends/sm90/rank.h"

namespace megamoe::sm90 {
namespace {

constexpr uint32_t kDefaultUnitBlocks = 8;
constexpr uint32_t kDefaultLagUnits = 12;
/// Small batches: the whole first GEMM before the second, so that the last tiles are short and wait for nobody (1% at
/// 128 tokens); their activations fit the ring.
constexpr uint32_t kSmallBatchLagUnits = backends::kLagOfAllUnits;
constexpr uint64_t kDefaultRingRows = 32768;

/// A full batch, for the cost model.
CallSize full_call(const LayerConfig& config, uint32_t num_ranks) {
  CallSize size;
  size.shape = config.shape;
  size.num_ranks = num_ranks;
  size.tokens_per_rank = config.max_tokens_per_rank;
  size.unit_blocks = config.unit_blocks != 0 ? config.unit_blocks : kDefaultUnitBlocks;
  return size;
}

const KernelInstance& instance_called(std::string_view name) {
  for (const KernelInstance* instance : {&m64_instance(), &m64_768_instance(), &m64_256_instance()})
    if (name == instance->spec.name) return *instance;
  return m128_instance();
}

const KernelInstance& choose_instance(const LayerConfig& config, uint32_t num_ranks) {
  return instance_called(choose_kernel(full_call(config, num_ranks), config.block_rows).kernel);
}

const KernelInstance& instance_of(const LayerPlan& report) {
  return instance_called(std::string_view(report.kernel).substr(0, report.kernel.find(':')));
}

Status out_of_range(const char* what, uint64_t low, uint64_t high, uint64_t got) {
  return {Code::kInvalidArgument,
          fmt::format("moe_layer.create: {} must be between {} and {}, got {}; 0 chooses", what, low, high, got)};
}

class GpuMemory final : public backends::DeviceMemory {
 public:
  Device device() const override { return Device::kCuda; }

  int32_t num_devices() const override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
    return count;
  }

  Result<std::shared_ptr<std::byte>> allocate(uint64_t bytes, int32_t device_index) const override {
    const CurrentDevice current(device_index);
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, std::max<uint64_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return Status{Code::kOutOfMemory,
                    fmt::format("gpu_memory.allocate: {} bytes must be free on the GPU, and they are not; use fewer "
                                "tokens or experts a GPU",
                                bytes)};
    }
    MEGAMOE_RETURN_IF_ERROR(cuda_status(error, "gpu_memory.allocate", "cudaMalloc"));
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* owned) { cudaFree(owned); });
  }

  Status copy(void* to, const void* from, uint64_t bytes, int32_t device_index) const override {
    const CurrentDevice current(device_index);
    // Ranks run on streams that do not wait for the default one, so this is safe beside a kernel that waits for us.
    constexpr std::string_view kWhere = "gpu_memory.copy";
    MEGAMOE_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamLegacy), kWhere);
    MEGAMOE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(cudaStreamLegacy), kWhere);
    return {};
  }
};

class Sm90Backend final : public backends::Backend {
 public:
  std::string_view name() const override { return "cuda"; }

  const backends::DeviceMemory* device_memory() const override {
    static const GpuMemory instance;
    return &instance;
  }

  Status available(int32_t device_index) const override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      cudaGetLastError();
      return {
          Code::kNotSupported,
          fmt::format("moe_layer.create: backend cuda needs an NVIDIA driver and a GPU, found none ({}); use backend "
                      "cpu",
                      cudaGetErrorName(error))};
    }
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_index);
    if (major != 9 || minor != 0)
      return {Code::kNotSupported,
              fmt::format("moe_layer.create: backend cuda needs a Hopper GPU (compute capability 9.0), got {}.{}; use "
                          "backend cpu",
                          major, minor)};
    if (encode_tiled() == nullptr)
      return {Code::kNotSupported,
              "moe_layer.create: backend cuda needs a driver for CUDA 12 or later, got an older one; update it"};
    return {};
  }

  Result<backends::BackendPlan> plan(const LayerConfig& config, uint32_t num_ranks) const override {
    return plan_sm90(config, num_ranks);
  }

  Result<std::unique_ptr<backends::BackendRank>> create(const LayerConfig& config, const backends::BackendPlan& plan,
                                                        std::shared_ptr<SymmetricMemory> group) const override {
    Result<std::unique_ptr<Sm90Rank>> rank = Sm90Rank::create(config, plan, instance_of(plan.report), std::move(group));
    if (!rank.ok()) return rank.status();
    return std::unique_ptr<backends::BackendRank>(std::move(rank).value());
  }
};

void describe(const KernelInstance& instance, backends::BackendPlan& plan) {
  const protocol::KernelSpec& spec = instance.spec;
  LayerPlan& report = plan.report;
  report.backend = "cuda";
  report.kernel = fmt::format(
      "{}: {} rows x {} columns x {} deep, {} stages, {} bytes of shared memory, warp plan {}; E4M3 x E4M3 -> FP32, "
      "promoted per 128",
      spec.name, spec.block_m, spec.tile_n, spec.tile_k, spec.num_stages, instance.shared_bytes, spec.plan.name);
  for (uint32_t warp = 0; warp < spec.plan.num_warps(); ++warp) {
    const std::string role = protocol::name(spec.plan.role(warp));
    if (report.roles.empty() || report.roles.back().role != role)
      report.roles.push_back({role, 0, spec.plan.registers(warp)});
    report.roles.back().num_threads += 32;
  }
  backends::describe_schedule(plan);
}

}  // namespace

Result<backends::BackendPlan> plan_sm90(const LayerConfig& config, uint32_t num_ranks, const KernelInstance* instance) {
  if (config.block_rows != 0 && config.block_rows != 64 && config.block_rows != 128)
    return Status{Code::kInvalidArgument,
                  fmt::format("moe_layer.create: block_rows must be 64 or 128 with backend cuda, got {}; 0 chooses",
                              config.block_rows)};
  const KernelInstance& chosen = instance != nullptr ? *instance : choose_instance(config, num_ranks);
  backends::BackendPlan plan;
  protocol::WorkspaceSpec& w = plan.workspace;
  backends::set_shape(config, num_ranks, w);
  w.block_m = chosen.spec.block_m;
  w.extra_m = chosen.spec.extra_m;
  protocol::ScheduleSpec& s = plan.schedule;
  s.unit_blocks = config.unit_blocks != 0 ? config.unit_blocks : kDefaultUnitBlocks;
  s.lag_units = config.lag_units != 0       ? config.lag_units
                : chosen.spec.block_m == 64 ? kSmallBatchLagUnits
                                            : kDefaultLagUnits;
  const auto ring_blocks = [&](uint32_t asked) {
    const uint64_t most = std::min<uint64_t>(w.max_blocks(), kDefaultRingRows / w.block_m);
    return asked != 0 ? asked : std::max(s.unit_blocks, static_cast<uint32_t>(most));
  };
  w.token_ring_blocks = ring_blocks(config.token_ring_blocks);
  w.act_ring_blocks = ring_blocks(config.act_ring_blocks);
  for (const uint32_t ring : {w.token_ring_blocks, w.act_ring_blocks})
    if (ring < s.unit_blocks) return out_of_range("ring blocks", s.unit_blocks, w.max_blocks(), ring);
  s.num_l1_tiles = w.intermediate_groups();
  s.num_l2_tiles = core::ceil_div(w.shape.hidden, chosen.spec.tile_n);
  s.act_ring_blocks = w.act_ring_blocks;
  if (!protocol::Workspace::fits(w) || w.max_blocks() * (s.num_l1_tiles + s.num_l2_tiles) >= UINT32_MAX / 2)
    return Status{
        Code::kInvalidArgument,
        fmt::format("moe_layer.create: rows of one call must stay below 2^32 and regions below 2^60 bytes, got "
                    "{} ranks x {} tokens x top-{}; lower max_tokens_per_rank",
                    num_ranks, w.max_tokens, w.shape.top_k)};
  describe(chosen, plan);
  if (instance == nullptr) {
    const CallSize size = full_call(config, num_ranks);
    plan.report.choice = explain(size, config.block_rows);
    plan.report.predicted_us = choose_kernel(size, config.block_rows).total_us();
  }
  return plan;
}

const backends::Backend& backend() {
  static const Sm90Backend instance;
  return instance;
}

}  // namespace megamoe::sm90
