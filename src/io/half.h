// IEEE half precision (F16): 1 sign, 5 exponent (bias 15) and 10 fraction bits. Only ever read, from files.
#pragma once

#include <cstdint>

#include "core/bits.h"

namespace megamoe::io {

/// Exact; infinity and NaN stay what they are.
constexpr float half_decode(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) return core::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400) return core::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
  // Subnormal: magnitude * 2^-24, an FP32 number.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return core::bit_cast<float>(sign | core::bit_cast<uint32_t>(value));
}

}  // namespace megamoe::io
