// The oracle's formulas for single numbers and groups, in FP64 from their definitions: the host's oracle and the device
// checks' oracle compile the same text. Shares nothing with core/formats or a backend.
#pragma once

#include <cmath>
#include <limits>

#include "core/portable.h"

namespace megamoe::reference {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// sign * 2^(exponent - 7) * (1 + fraction / 8).
MEGAMOE_HD inline double e4m3_from_definition(int code) {
  const double sign = code >= 128 ? -1.0 : 1.0;
  const int exponent = (code % 128) / 8;
  const int fraction = code % 8;
  if (exponent == 15 && fraction == 7) return kNan;
  if (exponent == 0) return sign * ldexp(fraction / 8.0, 1 - 7);
  return sign * ldexp(1.0 + fraction / 8.0, exponent - 7);
}

/// The code of the nearest of `values[0 .. 256)`, found by search; ties go to the even code; beyond +-448 it stays
/// +-448; NaN gives 0x7f.
MEGAMOE_HD inline uint8_t e4m3_nearest_of(const double* values, double value) {
  if (value != value) return 0x7f;
  const double magnitude = fabs(value);
  // Codes 0 to 126 are the numbers from 0 to 448 in ascending order: the first one that is not below.
  int code = 0;
  for (int step = 64; step > 0; step /= 2)
    if (code + step <= 127 && values[code + step - 1] < magnitude) code += step;
  if (code == 127) {
    code = 126;
  } else if (code > 0) {
    const double to_upper = values[code] - magnitude;
    const double to_lower = magnitude - values[code - 1];
    if (to_lower < to_upper || (to_lower == to_upper && code % 2 == 1)) code -= 1;
  }
  return static_cast<uint8_t>(copysign(1.0, value) < 0 ? code + 128 : code);
}

MEGAMOE_HD inline double bf16_value(uint16_t bits) {
  const double sign = bits >= 0x8000 ? -1.0 : 1.0;
  const int exponent = (bits % 0x8000) / 128;
  const int fraction = bits % 128;
  if (exponent == 255) return fraction == 0 ? sign * kInfinity : kNan;
  if (exponent == 0) return sign * ldexp(fraction / 128.0, 1 - 127);
  return sign * ldexp(1.0 + fraction / 128.0, exponent - 127);
}

/// The nearest BF16 number, ties to even; too large becomes infinity; NaN gives 0x7fc0.
MEGAMOE_HD inline uint16_t bf16_nearest(double value) {
  if (value != value) return 0x7fc0;
  const uint32_t sign = copysign(1.0, value) < 0 ? 0x8000 : 0;
  const double magnitude = fabs(value);
  if (magnitude == 0.0) return static_cast<uint16_t>(sign);
  if (magnitude >= ldexp(1.0, 128)) return static_cast<uint16_t>(sign + 0x7f80);

  const int own_exponent = ilogb(magnitude);
  const int exponent = own_exponent > 1 - 127 ? own_exponent : 1 - 127;
  const double units = ldexp(magnitude, 7 - exponent);  // below 256: the significand with its fraction bits as units
  const double whole = floor(units);
  const double rest = units - whole;
  uint32_t significand = static_cast<uint32_t>(whole);
  if (rest > 0.5 || (rest == 0.5 && significand % 2 == 1)) significand += 1;
  // Adding instead of combining lets a significand of 256 carry into the exponent, up to infinity.
  return static_cast<uint16_t>(sign + static_cast<uint32_t>(exponent + 126) * 128 + significand);
}

/// How one group of up to 128 columns is quantised. Each step is the FP32 operation of the contract: FP64 holds the
/// exact product of two FP32 numbers, and rounding an FP64 quotient to FP32 gives the correctly rounded FP32 quotient.
struct GroupScale {
  float scale = 0;
  float inverse = 0;

  /// @param value  value(k), an FP32 number, for k below `count`
  template <class Value>
  MEGAMOE_HD static GroupScale of(uint32_t count, Value&& value) {
    double amax = 0.0;
    for (uint32_t k = 0; k < count; ++k) {
      const double magnitude = fabs(value(k));
      if (magnitude > amax) amax = magnitude;  // false for NaN, which the maximum ignores
    }
    const double floor_value = static_cast<double>(1e-10f);
    const double floored = amax > floor_value ? amax : floor_value;
    const auto scale = static_cast<float>(floored / 448.0);
    return {scale, static_cast<float>(1.0 / scale)};
  }
  /// What is rounded to E4M3.
  MEGAMOE_HD double scaled(double value) const { return static_cast<float>(value * inverse); }
};

/// (silu(min(gate, limit)) * clamp(up, -limit, limit)) * topk_weight; no clamp: an infinite limit.
MEGAMOE_HD inline double swiglu_limited(double gate, double up, double limit, double topk_weight) {
  if (gate > limit) gate = limit;
  if (up > limit) up = limit;
  if (up < -limit) up = -limit;
  const double silu = gate / (1.0 + exp(-gate));
  return silu * up * topk_weight;
}

}  // namespace megamoe::reference
