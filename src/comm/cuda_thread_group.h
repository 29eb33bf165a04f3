// The memory of ranks that are threads of one process and share one GPU.
#pragma once

#include "comm/thread_group.h"

namespace megamoe::comm {

/// One cudaMalloc; parts of whole 2 MiB.
class CudaMemory final : public GroupMemory {
 public:
  explicit CudaMemory(int device_index) : device_index_(device_index) {}
  ~CudaMemory() override { free(); }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::string_view transport() const override { return "threads on one GPU"; }
  Device device() const override { return Device::kCuda; }
  Status allocate(uint64_t bytes, uint32_t num_ranks) override;
  void release() override { free(); }

 private:
  void free();

  const int device_index_;
};

}  // namespace megamoe::comm
