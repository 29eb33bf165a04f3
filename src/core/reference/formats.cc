// E4M3 and BF16 from their definitions, in FP64 and without bit tricks.
#include "core/reference/formats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace megamoe::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double e4m3_from_definition(int code) {
  const double sign = code >= 128 ? -1.0 : 1.0;
  const int exponent = (code % 128) / 8;
  const int fraction = code % 8;
  if (exponent == 15 && fraction == 7) return kNan;
  if (exponent == 0) return sign * std::ldexp(fraction / 8.0, 1 - 7);
  return sign * std::ldexp(1.0 + fraction / 8.0, exponent - 7);
}

}  // namespace

const std::array<double, 256>& e4m3_values() {
  static const std::array<double, 256> kValues = [] {
    std::array<double, 256> table{};
    for (int code = 0; code < 256; ++code) table[code] = e4m3_from_definition(code);
    return table;
  }();
  return kValues;
}

uint8_t e4m3_nearest(double value) {
  if (std::isnan(value)) return 0x7f;
  const std::array<double, 256>& values = e4m3_values();
  const double magnitude = std::fabs(value);
  // Codes 0 to 126 are the numbers from 0 to 448 in ascending order.
  const auto above = std::lower_bound(values.begin(), values.begin() + 127, magnitude);
  int code = static_cast<int>(above - values.begin());
  if (code == 127) {
    code = 126;
  } else if (code > 0) {
    const double to_upper = values[code] - magnitude;
    const double to_lower = magnitude - values[code - 1];
    if (to_lower < to_upper || (to_lower == to_upper && code % 2 == 1)) code -= 1;
  }
  return static_cast<uint8_t>(std::signbit(value) ? code + 128 : code);
}

double bf16_value(uint16_t bits) {
  const double sign = bits >= 0x8000 ? -1.0 : 1.0;
  const int exponent = (bits % 0x8000) / 128;
  const int fraction = bits % 128;
  if (exponent == 255) return fraction == 0 ? sign * kInfinity : kNan;
  if (exponent == 0) return sign * std::ldexp(fraction / 128.0, 1 - 127);
  return sign * std::ldexp(1.0 + fraction / 128.0, exponent - 127);
}

uint16_t bf16_nearest(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return static_cast<uint16_t>(sign);
  if (magnitude >= std::ldexp(1.0, 128)) return static_cast<uint16_t>(sign + 0x7f80);

  const int exponent = std::max(std::ilogb(magnitude), 1 - 127);
  const double units =
      std::ldexp(magnitude, 7 - exponent);  // below 256: the significand with its fraction bits as units
  const double whole = std::floor(units);
  const double rest = units - whole;
  uint32_t significand = static_cast<uint32_t>(whole);
  if (rest > 0.5 || (rest == 0.5 && significand % 2 == 1)) significand += 1;
  // Adding instead of combining lets a significand of 256 carry into the exponent, up to infinity.
  return static_cast<uint16_t>(sign + static_cast<uint32_t>(exponent + 126) * 128 + significand);
}

}  // namespace megamoe::reference
