// Reserve, map, allow; and all of it back.
#include "comm/gpu_range.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/integer.h"

namespace megamoe::comm {

Status GpuRange::reserve(const RegionSizes& sizes) {
  Result<std::byte*> base = driver_.reserve(sizes.total_bytes);
  if (!base.ok()) return base.status();
  base_ = base.value();
  sizes_ = sizes;
  return {};
}

Status GpuRange::map(uint32_t rank, const GpuAllocation& allocation, std::span<const int32_t> devices) {
  MEGAMOE_RETURN_IF_ERROR(driver_.map(region(rank), sizes_.stride_bytes, allocation.get()));
  mapped_.push_back(rank);
  return driver_.allow(region(rank), sizes_.stride_bytes, devices);
}

void GpuRange::reset() {
  for (; !mapped_.empty(); mapped_.pop_back()) driver_.unmap(region(mapped_.back()), sizes_.stride_bytes);
  if (base_ != nullptr) driver_.free_range(base_, sizes_.total_bytes);
  base_ = nullptr;
  sizes_ = {};
}

Result<RegionSizes> gpu_region_sizes(GpuDriver& driver, std::span<const int32_t> devices, uint64_t bytes,
                                     uint32_t num_ranks) {
  uint64_t granularity_bytes = ProbeCall::kBytes;
  for (const int32_t device : devices) {
    const Result<uint64_t> own = driver.granularity_bytes(device);
    if (!own.ok()) return gpu_step_failed(own.status(), "reading the granularity of memory", device);
    granularity_bytes = std::max(granularity_bytes, own.value());
  }
  const Result<RegionSizes> sizes = region_sizes(bytes, num_ranks);
  if (!sizes.ok()) return sizes.status();
  const uint64_t stride_bytes = core::align_up(bytes, granularity_bytes);
  return RegionSizes{stride_bytes, stride_bytes * num_ranks};
}

Result<GpuAllocation> create_gpu_memory(GpuDriver& driver, int32_t device, const RegionSizes& sizes,
                                        bool with_processes) {
  const auto full = [&](std::string_view got) {
    return Status{Code::kOutOfMemory,
                  fmt::format("symmetric_memory.allocate: needs {} bytes on GPU {} for each rank, {} bytes for all "
                              "ranks, got: {}; lower max_tokens, use more GPUs or free memory of the GPU",
                              sizes.stride_bytes, device, sizes.total_bytes, got)};
  };
  const Result<uint64_t> total_bytes = driver.total_bytes(device);
  if (!total_bytes.ok()) return gpu_step_failed(total_bytes.status(), "reading the size of memory", device);
  if (sizes.stride_bytes > total_bytes.value()) return full(fmt::format("a GPU with {} bytes", total_bytes.value()));
  const Result<GpuDriver::Allocation> created = driver.create(device, sizes.stride_bytes, with_processes);
  if (created.ok()) return GpuAllocation(driver, created.value());
  if (created.status().code() == Code::kOutOfMemory) return full(created.status().message());
  return gpu_step_failed(created.status(), "taking memory", device);
}

Status gpu_step_failed(const Status& status, std::string_view what, int32_t device) {
  return {status.code(), fmt::format("symmetric_memory.allocate: {} on GPU {} must succeed, got: {}; see what megamoe "
                                     "doctor says of it",
                                     what, device, status.message())};
}

}  // namespace megamoe::comm
