// Reinterpretation of bit patterns that works in constant expressions, on the host and in device code.
#pragma once

#include "core/portable.h"

namespace megamoe::core {

/// The bits of `value` as another type of the same size.
template <class To, class From>
MEGAMOE_HD constexpr To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

/// value / 2^shift rounded to the nearest integer, ties to even. 1 <= shift <= 31 and value < 2^31.
MEGAMOE_HD constexpr uint32_t shift_right_rne(uint32_t value, uint32_t shift) {
  const uint32_t half_minus_one = (1u << (shift - 1)) - 1;
  return (value + half_minus_one + ((value >> shift) & 1)) >> shift;
}

}  // namespace megamoe::core
