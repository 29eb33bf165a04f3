// Copies through the CUDA runtime.
#include "gpu_bytes.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace megamoe::test {

uint32_t num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<uint32_t>(count) : 0;
}

void use_gpu(uint32_t index) { cudaSetDevice(static_cast<int>(index)); }

void copy_gpu_bytes(void* to, const void* from, size_t count) {
  cudaError_t error = cudaMemcpy(to, from, count, cudaMemcpyDefault);
  // A small copy to the GPU may be on its way still: a barrier between ranks must not overtake it.
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "copy of %zu bytes: %s\n", count, cudaGetErrorName(error));
  std::abort();
}

}  // namespace megamoe::test
