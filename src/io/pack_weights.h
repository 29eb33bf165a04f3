// BF16 or FP32 weights to E4M3 codes with one FP32 scale per 128 x 128 block.
#pragma once

#include <cstdint>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::io {

/// Packs a dense [num_rows][num_cols] matrix. Per block of 128 x 128 (blocks at the edges may be smaller):
/// scale = max(amax, 1e-10) / 448, code = e4m3(w * (1 / scale)), round to nearest even, saturating, all in FP32.
/// `codes` is [num_rows][num_cols]; `scales` is [ceil(num_rows / 128)][ceil(num_cols / 128)].
/// kBadFile naming `tensor_name` and the index where a weight is NaN or infinite; the outputs are then undefined.
Status pack_weights(const float* weights, uint64_t num_rows, uint64_t num_cols, uint8_t* codes, float* scales,
                    std::string_view tensor_name);

/// The same from BF16 bit patterns.
Status pack_weights_bf16(const uint16_t* weights, uint64_t num_rows, uint64_t num_cols, uint8_t* codes, float* scales,
                         std::string_view tensor_name);

}  // namespace megamoe::io
