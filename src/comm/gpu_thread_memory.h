// The memory of ranks that are threads of one process, on one GPU or several.
#pragma once

#include <string>
#include <vector>

#include "comm/gpu_range.h"
#include "comm/thread_group.h"

namespace megamoe::comm {

class GpuThreadMemory final : public GroupMemory {
 public:
  /// @param devices  by rank; a GPU may be named several times
  GpuThreadMemory(GpuDriver& driver, std::vector<int32_t> devices);

  std::string_view transport() const override {
    return distinct_.size() == 1 ? "threads on one GPU" : "threads on GPUs";
  }
  Device device() const override { return Device::kCuda; }
  int32_t device_index(uint32_t rank) const override { return devices_[rank]; }
  Status allocate(uint64_t bytes, uint32_t num_ranks) override;
  void release() override;

  const std::vector<int32_t>& distinct() const { return distinct_; }

 private:
  Status open(uint64_t bytes, uint32_t num_ranks);
  Status probe(uint32_t num_ranks);

  GpuDriver& driver_;
  const std::vector<int32_t> devices_;
  std::vector<int32_t> distinct_;
  GpuRange range_;
};

}  // namespace megamoe::comm
