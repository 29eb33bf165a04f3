// E5M2: 1 sign, 5 exponent (bias 15) and 2 fraction bits, IEEE style; largest number 57,344, infinity 0x7c, NaN 0x7d to
// 0x7f.
#pragma once

#include "core/bits.h"

namespace megamoe::core {

inline constexpr float kE5m2Max = 57344.0f;
inline constexpr uint8_t kE5m2MaxCode = 0x7b;
inline constexpr uint8_t kE5m2InfinityCode = 0x7c;
inline constexpr uint8_t kE5m2NanCode = 0x7f;
inline constexpr uint8_t kE5m2SignBit = 0x80;

MEGAMOE_HD constexpr bool e5m2_is_nan(uint8_t code) { return (code & 0x7f) > kE5m2InfinityCode; }

/// Exact: each number is an FP32 number.
MEGAMOE_HD constexpr float e5m2_decode(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & kE5m2SignBit) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude > kE5m2InfinityCode) return bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude == kE5m2InfinityCode) return bit_cast<float>(sign | 0x7f800000u);
  if (magnitude >= 4) return bit_cast<float>(sign | ((magnitude << 21) + ((127u - 15u) << 23)));
  if (magnitude == 0) return bit_cast<float>(sign);
  // Subnormal: magnitude * 2^-16.
  const uint32_t leading = magnitude >= 2 ? 1 : 0;
  const uint32_t exponent = 127u - 16u + leading;
  return bit_cast<float>(sign | (exponent << 23) | ((magnitude << (23 - leading)) & 0x007fffffu));
}

/// Nearest code, ties to even, saturating: anything beyond +-57,344, infinities included, gives +-57,344. Any NaN gives
/// 0x7f. Integer arithmetic only.
MEGAMOE_HD constexpr uint8_t e5m2_encode(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & kE5m2SignBit;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kE5m2NanCode;
  if (magnitude >= 0x47600000u) return static_cast<uint8_t>(sign | kE5m2MaxCode);  // 57,344 and above
  if (magnitude >= 0x38800000u) {                                                  // 2^-14: the smallest normal number
    const uint32_t rounded = shift_right_rne(magnitude, 21);
    return static_cast<uint8_t>(sign | (rounded - ((127u - 15u) << 2)));
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 127 - 17) return static_cast<uint8_t>(sign);  // below half of the smallest subnormal number, 2^-16
  const uint32_t significand = (magnitude & 0x007fffffu) | 0x00800000u;
  return static_cast<uint8_t>(sign | shift_right_rne(significand, 134 - exponent));
}

}  // namespace megamoe::core
