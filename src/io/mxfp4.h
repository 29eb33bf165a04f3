// MXFP4 weights (E2M1, one power of two for 32 columns) as E4M3 codes with one scale per 128 x 128 block.
#pragma once

#include <cstdint>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::io {

inline constexpr uint64_t kMxfp4Run = 32;  ///< Columns that share an exponent.

/// Expands [num_rows][num_cols] weights, num_cols a multiple of 32.
///
/// Exact as a rule: within a block of 128 x 128 the scale is 2^(k - 6), k the largest exponent of a run that is not all
/// zero, which puts 6 * 2^k at 384; every E2M1 number of a run whose exponent is at least k - 14 is then an E4M3
/// number. A number of a run further below is rounded to the nearest E4M3 number, which changes it by at most 2^(k -
/// 16), less than a thirty-thousandth of the smallest non-zero weight of the run that has k.
///
/// @param packed       [num_rows][num_cols / 2], the column with the even index in the lower four bits
/// @param exponents    [num_rows][num_cols / 32], value 2^(byte - 127)
/// @param codes        [num_rows][num_cols]
/// @param scales       [ceil(num_rows / 128)][ceil(num_cols / 128)]
/// @param num_rounded  grows by the number of weights that are not exact
/// kBadFile naming `tensor_name` and the place where an exponent is NaN (0xff).
Status expand_mxfp4(const uint8_t* packed, const uint8_t* exponents, uint64_t num_rows, uint64_t num_cols,
                    uint8_t* codes, float* scales, uint64_t& num_rounded, std::string_view tensor_name);

}  // namespace megamoe::io
