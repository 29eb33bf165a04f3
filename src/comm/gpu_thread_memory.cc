// Every rank's memory on its own GPU, all of it open to all GPUs of the group.
#include "comm/gpu_thread_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/gpu_reach.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kProbeTimeoutNs = 5'000'000'000;

}  // namespace

GpuThreadMemory::GpuThreadMemory(GpuDriver& driver, std::vector<int32_t> devices)
    : driver_(driver), devices_(std::move(devices)), distinct_(devices_), range_(driver) {
  std::sort(distinct_.begin(), distinct_.end());
  distinct_.erase(std::unique(distinct_.begin(), distinct_.end()), distinct_.end());
}

Status GpuThreadMemory::allocate(uint64_t bytes, uint32_t num_ranks) {
  Status status = open(bytes, num_ranks);
  if (status.ok()) status = probe(num_ranks);
  if (!status.ok()) {
    range_.reset();
    return status;
  }
  base_ = range_.base();
  sizes_ = range_.sizes();
  return {};
}

Status GpuThreadMemory::open(uint64_t bytes, uint32_t num_ranks) {
  const Result<RegionSizes> sizes = gpu_region_sizes(driver_, distinct_, bytes, num_ranks);
  if (!sizes.ok()) return sizes.status();
  std::vector<GpuAllocation> memory;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    Result<GpuAllocation> own = create_gpu_memory(driver_, devices_[rank], sizes.value(), false);
    if (!own.ok()) return own.status();
    memory.push_back(std::move(own).value());
  }
  if (const Status status = range_.reserve(sizes.value()); !status.ok())
    return gpu_step_failed(status, "reserving addresses", distinct_.front());
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    Status status = range_.map(rank, memory[rank], distinct_);
    if (!status.ok()) return gpu_step_failed(status, fmt::format("mapping rank {}'s memory", rank), devices_[rank]);
    status = driver_.zero(devices_[rank], range_.region(rank), sizes->stride_bytes);
    if (!status.ok()) return gpu_step_failed(status, fmt::format("zeroing rank {}'s memory", rank), devices_[rank]);
  }
  return {};
}

Status GpuThreadMemory::probe(uint32_t num_ranks) {
  const auto call = [&](uint32_t rank) {
    return ProbeCall{range_.base(), range_.sizes().stride_bytes, rank, num_ranks, kProbeTimeoutNs};
  };
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    names.push_back(fmt::format("rank {}", rank));
    const Status status = driver_.tell(devices_[rank], call(rank));
    if (!status.ok())
      return gpu_step_failed(status, fmt::format("rank {}'s probe of all memory", rank), devices_[rank]);
  }
  std::vector<std::string> pairs;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const Result<std::vector<Heard>> heard = driver_.hear(devices_[rank], call(rank));
    Status status = heard.status();
    if (heard.ok()) {
      const auto silent = silent_pairs(heard.value(), rank, kProbeTimeoutNs, names);
      pairs.insert(pairs.end(), silent.begin(), silent.end());
      status = driver_.zero(devices_[rank], range_.region(rank), ProbeCall::kBytes);
    }
    if (!status.ok())
      return gpu_step_failed(status, fmt::format("rank {}'s probe of its memory", rank), devices_[rank]);
  }
  return reach_status("symmetric_memory.allocate", pairs);
}

void GpuThreadMemory::release() {
  range_.reset();
  base_ = nullptr;
  sizes_ = {};
}

}  // namespace megamoe::comm
