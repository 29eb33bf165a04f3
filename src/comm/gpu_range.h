// One flat range of addresses for the memory of all ranks, and physical memory: both go with their owner.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "comm/gpu_driver.h"
#include "comm/region.h"

namespace megamoe::comm {

/// Physical memory of a GPU until it is dropped; a mapping keeps it beyond.
class GpuAllocation {
 public:
  GpuAllocation(GpuDriver& driver, GpuDriver::Allocation allocation) : driver_(&driver), allocation_(allocation) {}
  ~GpuAllocation() {
    if (allocation_ != 0) driver_->release(allocation_);
  }
  GpuAllocation(GpuAllocation&& other) noexcept
      : driver_(other.driver_), allocation_(std::exchange(other.allocation_, 0)) {}
  GpuAllocation& operator=(GpuAllocation&&) = delete;

  GpuDriver::Allocation get() const { return allocation_; }

 private:
  GpuDriver* driver_;
  GpuDriver::Allocation allocation_;
};

/// Rank r's memory at base() + r * stride_bytes().
class GpuRange {
 public:
  explicit GpuRange(GpuDriver& driver) : driver_(driver) {}
  ~GpuRange() { reset(); }
  GpuRange(const GpuRange&) = delete;
  GpuRange& operator=(const GpuRange&) = delete;

  /// Precondition: empty.
  Status reserve(const RegionSizes& sizes);
  /// Maps a rank's memory, once, and lets the devices use it.
  Status map(uint32_t rank, const GpuAllocation& allocation, std::span<const int32_t> devices);
  /// Unmaps in the reverse order of mapping and gives the addresses back.
  void reset();

  std::byte* base() const { return base_; }
  std::byte* region(uint32_t rank) const { return base_ + rank * sizes_.stride_bytes; }
  const RegionSizes& sizes() const { return sizes_; }

 private:
  GpuDriver& driver_;
  std::byte* base_ = nullptr;
  RegionSizes sizes_;
  std::vector<uint32_t> mapped_;
};

/// Whole granules of the largest granularity of the devices.
Result<RegionSizes> gpu_region_sizes(GpuDriver& driver, std::span<const int32_t> devices, uint64_t bytes,
                                     uint32_t num_ranks);

/// Memory of one rank; an error is a sentence with the bytes. Adds what the driver says of memory that it cannot give.
Result<GpuAllocation> create_gpu_memory(GpuDriver& driver, int32_t device, const RegionSizes& sizes,
                                        bool with_processes);

/// "symmetric_memory.allocate: <what> on GPU <device> must succeed, got: <the driver's words>; ...": with the code.
Status gpu_step_failed(const Status& status, std::string_view what, int32_t device);

}  // namespace megamoe::comm
