// E4M3 (e4m3fn): 1 sign, 4 exponent (bias 7) and 3 fraction bits; largest value 448, no infinity, NaN is 0x7f and 0xff.
#pragma once

#include "core/bits.h"

namespace megamoe::core {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3MaxCode = 0x7e;
inline constexpr uint8_t kE4m3NanCode = 0x7f;
inline constexpr uint8_t kE4m3SignBit = 0x80;

MEGAMOE_HD constexpr bool e4m3_is_nan(uint8_t code) { return (code & 0x7f) == kE4m3NanCode; }

/// Exact: each of the 254 numbers is an FP32 number.
MEGAMOE_HD constexpr float e4m3_decode(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & kE4m3SignBit) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == kE4m3NanCode) return bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude >= 8) return bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
  if (magnitude == 0) return bit_cast<float>(sign);
  // Subnormal: magnitude * 2^-9. Normalise its one to three bits.
  const uint32_t leading = magnitude >= 4 ? 2 : (magnitude >= 2 ? 1 : 0);
  const uint32_t exponent = 127u - 9u + leading;
  return bit_cast<float>(sign | (exponent << 23) | ((magnitude << (23 - leading)) & 0x007fffffu));
}

/// Nearest code, ties to even, saturating: anything beyond +-448, infinities included, gives +-448. Any NaN gives 0x7f.
/// Integer arithmetic only, so the caller's rounding mode, FTZ and DAZ do not matter.
MEGAMOE_HD constexpr uint8_t e4m3_encode(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & kE4m3SignBit;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kE4m3NanCode;
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | kE4m3MaxCode);  // 448 and above
  if (magnitude >= 0x3c800000u) {                                                  // 2^-6: the smallest normal number
    const uint32_t rounded = shift_right_rne(magnitude, 20);
    return static_cast<uint8_t>(sign | (rounded - ((127u - 7u) << 3)));
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 127 - 10) return static_cast<uint8_t>(sign);  // below half of the smallest subnormal number, 2^-9
  const uint32_t significand = (magnitude & 0x007fffffu) | 0x00800000u;
  return static_cast<uint8_t>(sign | shift_right_rne(significand, 141 - exponent));
}

}  // namespace megamoe::core
