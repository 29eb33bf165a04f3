// What one SIMD level provides to the dispatcher; one entry per function of kernels.h.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/kernels.h"

namespace megamoe::cpu {

enum class SimdLevel : uint8_t { kScalar, kSse4, kAvx2, kAvx512 };

using GemmKernel = void (*)(const GemmBlock& block);

struct RowKernels {
  void (*quantize_rows_bf16)(const uint16_t* x, int64_t x_row_stride, int64_t num_rows, int64_t hidden, uint8_t* codes,
                             int64_t codes_row_stride, float* scales, int64_t scales_row_stride) = nullptr;
  void (*swiglu_quantize_rows)(const SwigluBlock& block) = nullptr;
  void (*exp_row)(const float* x, int64_t count, float* y) = nullptr;
  void (*float_rows_to_bf16)(const float* x, int64_t x_row_stride, int64_t num_rows, int64_t num_columns, uint16_t* out,
                             int64_t out_row_stride) = nullptr;
  void (*combine_rows)(const uint16_t* const* rows, int64_t num_rows, int64_t hidden, uint16_t* out) = nullptr;
};

/// The kernels compiled for `level`; null where this build has none.
GemmKernel gemm_kernel(SimdLevel level);
RowKernels row_kernels(SimdLevel level);

}  // namespace megamoe::cpu
