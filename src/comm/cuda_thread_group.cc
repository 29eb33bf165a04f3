// Ranks as threads that share one GPU: they meet like other threads, their memory is one cudaMalloc.
#include "comm/cuda_thread_group.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/integer.h"

namespace megamoe::comm {
namespace {

/// Makes a GPU the calling thread's current one for a while.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device_index) {
    cudaGetDevice(&before_);
    error_ = cudaSetDevice(device_index);
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace

Status CudaMemory::allocate(uint64_t bytes, uint32_t num_ranks) {
  constexpr uint64_t kPartBytes = uint64_t{2} << 20;
  Result<RegionSizes> sizes = region_sizes(bytes, num_ranks);
  if (!sizes.ok()) return sizes.status();
  const uint64_t stride_bytes = core::align_up(sizes->stride_bytes, kPartBytes);
  const uint64_t total_bytes = stride_bytes * num_ranks;
  const CurrentDevice current(device_index_);
  void* memory = nullptr;
  cudaError_t error = current.error();
  if (error == cudaSuccess) error = cudaMalloc(&memory, total_bytes);
  if (error == cudaSuccess) error = cudaMemset(memory, 0, total_bytes);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    cudaFree(memory);
    cudaGetLastError();
    const bool is_full = error == cudaErrorMemoryAllocation;
    return {is_full ? Code::kOutOfMemory : Code::kInternal,
            fmt::format("symmetric_memory.allocate: needs {} bytes on GPU {} for all ranks, got: {} ({}); {}",
                        total_bytes, device_index_, cudaGetErrorName(error), cudaGetErrorString(error),
                        is_full ? "lower max_tokens or free memory of the GPU" : "see what megamoe doctor says of it")};
  }
  base_ = static_cast<std::byte*>(memory);
  sizes_ = {stride_bytes, total_bytes};
  return {};
}

void CudaMemory::free() {
  cudaFree(base_);
  base_ = nullptr;
  sizes_ = {};
}

}  // namespace megamoe::comm

namespace megamoe {

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_cuda_thread_group(uint32_t num_ranks, int32_t device_index) {
  if (num_ranks < 1 || num_ranks > kMaxRanks)
    return Status{Code::kInvalidArgument,
                  fmt::format("make_cuda_thread_group: num_ranks must be 1 to {}, got {}", kMaxRanks, num_ranks)};
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return Status{Code::kNotSupported,
                  fmt::format("make_cuda_thread_group: memory on a GPU needs an NVIDIA driver and a GPU, found none "
                              "({}); use make_thread_group",
                              cudaGetErrorName(error))};
  }
  if (device_index < 0 || device_index >= count)
    return Status{Code::kInvalidArgument,
                  fmt::format("make_cuda_thread_group: device_index must be one of the {} GPUs, counted from 0, got {}",
                              count, device_index)};
  return comm::make_members(num_ranks, std::make_unique<comm::CudaMemory>(device_index));
}

}  // namespace megamoe
