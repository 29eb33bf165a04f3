// Memory on a GPU, and random weights and tokens that are made there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "megamoe/status.h"

namespace megamoe::bench {

Status cuda_status(cudaError_t error, std::string_view what);
#define MEGAMOE_BENCH_CUDA(call) MEGAMOE_RETURN_IF_ERROR(::megamoe::bench::cuda_status((call), #call))

/// On the GPU that was current when it was allocated.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Result<DeviceBuffer> allocate(uint64_t bytes);
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

/// E4M3 codes of a bell-shaped variable with standard deviation 150.
Result<DeviceBuffer> random_codes(uint64_t count, uint64_t seed);
/// FP32 between half and one and a half times `middle`.
Result<DeviceBuffer> random_floats(uint64_t count, float middle, uint64_t seed);
/// BF16 of a bell-shaped variable with standard deviation 1.
Result<DeviceBuffer> random_bf16(uint64_t count, uint64_t seed);

/// Waits on the GPU until `wanted` ranks have come here, counted in host memory that all GPUs see, then for `hold_ns`
/// more, so that the host has time to queue what follows and no launch gap is measured.
Status line_up(uint32_t* arrivals, uint32_t wanted, uint64_t hold_ns, cudaStream_t stream);

}  // namespace megamoe::bench
