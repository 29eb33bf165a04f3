// Ranks as threads that share one GPU.
#include "device/gpu_group.h"

#include <cuda_runtime_api.h>

#include <string>

namespace megamoe::device_check {
namespace {

struct SharedMemory {
  void* base = nullptr;
  uint64_t stride_bytes = 0;
};

class GpuMember final : public SymmetricMemory {
 public:
  GpuMember(std::shared_ptr<SymmetricMemory> meeting, std::shared_ptr<SharedMemory> memory)
      : meeting_(std::move(meeting)), memory_(std::move(memory)) {}

  uint32_t rank() const override { return meeting_->rank(); }
  uint32_t num_ranks() const override { return meeting_->num_ranks(); }
  std::string_view transport() const override { return "threads on one GPU"; }
  std::string describe(uint32_t rank) const override { return "rank " + std::to_string(rank); }

  Status allocate(uint64_t bytes, uint64_t timeout_ns) override {
    Status status;
    if (rank() == 0) {
      constexpr uint64_t kAlign = 2 << 20;
      memory_->stride_bytes = (bytes + kAlign - 1) / kAlign * kAlign;
      const uint64_t total = memory_->stride_bytes * num_ranks();
      if (cudaMalloc(&memory_->base, total) != cudaSuccess || cudaMemset(memory_->base, 0, total) != cudaSuccess ||
          cudaDeviceSynchronize() != cudaSuccess)
        status = {Code::kOutOfMemory, "gpu_group: allocation failed"};
    }
    const auto met = meeting_->all_gather("", "allocation", timeout_ns);
    return status.ok() ? met.status() : status;
  }
  Status release(uint64_t timeout_ns) override {
    const auto met = meeting_->all_gather("", "release", timeout_ns);
    if (rank() == 0) cudaFree(memory_->base);
    return met.status();
  }
  std::byte* base() const override { return static_cast<std::byte*>(memory_->base); }
  uint64_t stride_bytes() const override { return memory_->stride_bytes; }
  uint64_t allocated_bytes() const override { return memory_->stride_bytes; }
  Result<std::vector<std::string>> all_gather(std::string_view mine, std::string_view what,
                                              uint64_t timeout_ns) override {
    return meeting_->all_gather(mine, what, timeout_ns);
  }

 private:
  std::shared_ptr<SymmetricMemory> meeting_;
  std::shared_ptr<SharedMemory> memory_;
};

}  // namespace

std::vector<std::shared_ptr<SymmetricMemory>> make_gpu_group(uint32_t num_ranks) {
  std::vector<std::shared_ptr<SymmetricMemory>> members;
  const auto memory = std::make_shared<SharedMemory>();
  const auto meeting = make_thread_group(num_ranks);
  for (const auto& member : meeting.value()) members.push_back(std::make_shared<GpuMember>(member, memory));
  return members;
}

}  // namespace megamoe::device_check
