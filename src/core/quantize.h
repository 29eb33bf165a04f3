// The activation quantiser, stated once for every backend's scalar path: one group of up to 128 columns of one row.
#pragma once

#include "core/bits.h"
#include "core/float_ops.h"
#include "core/formats/e4m3.h"

namespace megamoe::core {

/// Groups whose largest magnitude is below this share its scale: no division by zero, and a finite reciprocal.
inline constexpr float kAmaxFloor = 1e-10f;

/// The larger of `amax` and |value|; a NaN value leaves `amax` as it is. Start at 0.
MEGAMOE_HD inline float amax_update(float amax, float value) {
  const float magnitude = bit_cast<float>(bit_cast<uint32_t>(value) & 0x7fffffffu);
  return magnitude > amax ? magnitude : amax;
}

/// The FP32 scale of a group: value = code * scale. Infinite where `amax` is.
MEGAMOE_HD inline float group_scale(float amax) { return div_rn(amax > kAmaxFloor ? amax : kAmaxFloor, kE4m3Max); }

/// What values are multiplied by before encoding. Zero where the scale is infinite.
MEGAMOE_HD inline float group_inverse(float scale) { return div_rn(1.0f, scale); }

/// The E4M3 code of one value: a multiplication, then e4m3_encode.
MEGAMOE_HD inline uint8_t quantize_code(float value, float inverse) { return e4m3_encode(mul_rn(value, inverse)); }

/// Quantises `count` values, value i being `load(i)`, into `codes[0 .. count)` and returns the group's scale.
template <class Load>
MEGAMOE_HD inline float quantize_group(uint32_t count, Load&& load, uint8_t* codes) {
  float amax = 0.0f;
  for (uint32_t i = 0; i < count; ++i) amax = amax_update(amax, load(i));
  const float scale = group_scale(amax);
  const float inverse = group_inverse(scale);
  for (uint32_t i = 0; i < count; ++i) codes[i] = quantize_code(load(i), inverse);
  return scale;
}

}  // namespace megamoe::core
