// Weight scales as the kernel reads them.
#include "backends/sm90/scale_conversion.h"
#include "core/formats/ue8m0.h"

namespace megamoe::sm90 {
namespace {

__global__ void decode_kernel(const uint8_t* codes, float* scales, uint64_t count) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x)
    scales[i] = core::ue8m0_decode(codes[i]);
}

}  // namespace

cudaError_t decode_ue8m0(const uint8_t* codes, float* scales, uint64_t count, cudaStream_t stream) {
  if (count != 0) decode_kernel<<<256, 256, 0, stream>>>(codes, scales, count);
  return cudaGetLastError();
}

}  // namespace megamoe::sm90
