// What nvcc need not compile of gpu_data.h.
#include <fmt/format.h>

#include "bench/gpu_data.h"

namespace megamoe::bench {

Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  const bool is_full = error == cudaErrorMemoryAllocation;
  return {is_full ? Code::kOutOfMemory : Code::kInternal,
          fmt::format("megamoe bench: {} failed: {} ({}){}", what, cudaGetErrorName(error), cudaGetErrorString(error),
                      is_full ? "; choose a smaller model or fewer tokens" : "")};
}

Result<DeviceBuffer> DeviceBuffer::allocate(uint64_t bytes) {
  DeviceBuffer buffer;
  MEGAMOE_BENCH_CUDA(cudaMalloc(&buffer.data_, bytes));
  buffer.bytes_ = bytes;
  return Result<DeviceBuffer>(std::move(buffer));
}

}  // namespace megamoe::bench
