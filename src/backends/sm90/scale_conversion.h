// Weight scales as the kernel reads them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace megamoe::sm90 {

/// Decodes `count` UE8M0 exponent bytes into FP32, on the stream.
cudaError_t decode_ue8m0(const uint8_t* codes, float* scales, uint64_t count, cudaStream_t stream);

}  // namespace megamoe::sm90
