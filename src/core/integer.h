// Integer helpers that never wrap silently. Offsets and byte counts are 64-bit everywhere.
#pragma once

#include "core/portable.h"

namespace megamoe::core {

template <class T>
MEGAMOE_HD constexpr T ceil_div(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

template <class T>
MEGAMOE_HD constexpr T align_up(T value, T alignment) {
  return ceil_div(value, alignment) * alignment;
}

template <class T>
MEGAMOE_HD constexpr T min(T a, T b) {
  return b < a ? b : a;
}

template <class T>
MEGAMOE_HD constexpr T max(T a, T b) {
  return a < b ? b : a;
}

/// a * b, or false where the product does not fit 64 bits.
constexpr bool checked_mul(uint64_t a, uint64_t b, uint64_t& product) {
  if (a != 0 && b > UINT64_MAX / a) return false;
  product = a * b;
  return true;
}

/// a + b, or false where the sum does not fit 64 bits.
constexpr bool checked_add(uint64_t a, uint64_t b, uint64_t& sum) {
  if (b > UINT64_MAX - a) return false;
  sum = a + b;
  return true;
}

}  // namespace megamoe::core
