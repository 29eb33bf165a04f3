// UE8M0: a power of two as one exponent byte, 2^(code - 127); 0xff is NaN. A scale format: no sign, no zero.
#pragma once

#include "core/bits.h"

namespace megamoe::core {

inline constexpr uint8_t kUe8m0MaxCode = 0xfe;
inline constexpr uint8_t kUe8m0NanCode = 0xff;

/// Exact. Code 0 is 2^-127, an FP32 subnormal number.
MEGAMOE_HD constexpr float ue8m0_decode(uint8_t code) {
  if (code == kUe8m0NanCode) return bit_cast<float>(0x7fc00000u);
  if (code == 0) return bit_cast<float>(0x00400000u);
  return bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

/// The smallest power of two that is not below `value`, so that a scale never lets its block overflow. Zero gives
/// 2^-127, numbers above 2^127 give 2^127; negative numbers, infinity and NaN give NaN. Integer arithmetic only.
MEGAMOE_HD constexpr uint8_t ue8m0_encode_up(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) == 0) return 0;
  if (bits >= 0x7f800000u) return kUe8m0NanCode;  // infinity, NaN and every negative number
  if (bits <= 0x00400000u) return 0;
  if (bits <= 0x00800000u) return 1;
  const uint32_t rounded_up = (bits + 0x007fffffu) >> 23;
  return static_cast<uint8_t>(rounded_up > kUe8m0MaxCode ? kUe8m0MaxCode : rounded_up);
}

/// Whether `value` is one of the 255 numbers of the format.
MEGAMOE_HD constexpr bool ue8m0_is_exact(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if (bits == 0x00400000u) return true;
  return (bits & 0x807fffffu) == 0 && bits != 0 && bits < 0x7f800000u;
}

}  // namespace megamoe::core
