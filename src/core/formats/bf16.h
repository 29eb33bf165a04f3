// BF16: the upper half of an FP32 number.
#pragma once

#include "core/bits.h"

namespace megamoe::core {

/// Exact.
MEGAMOE_HD constexpr float bf16_decode(uint16_t bits) { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

MEGAMOE_HD constexpr bool bf16_is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

/// Nearest, ties to even; numbers that round beyond the largest become infinity. A NaN stays a quiet NaN of the same
/// sign. Integer arithmetic only.
MEGAMOE_HD constexpr uint16_t bf16_encode(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace megamoe::core
