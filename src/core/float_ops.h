// FP32 operations with one stated rounding each (to nearest, ties to even), which no compiler may fuse or relax.
#pragma once

#include "core/portable.h"

namespace megamoe::core {

/// a * b, never contracted with a following addition (the host is compiled with -ffp-contract=off).
MEGAMOE_HD inline float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

MEGAMOE_HD inline float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

MEGAMOE_HD inline float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// a * b + c with one rounding.
MEGAMOE_HD inline float fma_rn(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

}  // namespace megamoe::core
