// The oracle's own number formats, built from their definitions in FP64; shares nothing with core/formats.
#pragma once

#include <array>
#include <cstdint>

#include "core/reference/formulas.h"

namespace megamoe::reference {

/// The 256 values of E4M3 (e4m3fn), computed once as sign * 2^(exponent - 7) * (1 + fraction / 8).
const std::array<double, 256>& e4m3_values();

/// The code of the nearest E4M3 number, found by search in the table; ties go to the even code; beyond +-448 it stays
/// +-448; NaN gives 0x7f.
uint8_t e4m3_nearest(double value);

}  // namespace megamoe::reference
