// Where things lie when the multiply's operands are swapped: weights are its 64 rows, the tile's rows ("tokens", also
// in the second GEMM) its columns. Plain arithmetic, so that a test without a GPU can follow every sum into staging.
#pragma once

#include "core/swizzle.h"

namespace megamoe::sm90 {

struct SwappedTiling {
  static constexpr uint32_t kChunkRows = 64;  ///< Weight rows of one multiply.
  static constexpr uint32_t kChunks = 4;      ///< Of a tile.
  static constexpr uint32_t kStoreRows = 16;  ///< Tokens of one part of staging.

  /// Sums of one chunk in a thread, where the multiply is `width` tokens wide; and the tokens that they belong to.
  static MEGAMOE_HD constexpr uint32_t num_sums(uint32_t width) { return width / 2; }
  static MEGAMOE_HD constexpr uint32_t num_tokens(uint32_t width) { return width / 4; }
  /// A thread's n-th token, in the tile.
  static MEGAMOE_HD constexpr uint32_t token(uint32_t lane, uint32_t n) { return n / 2 * 8 + lane % 4 * 2 + n % 2; }
  /// The sum of its n-th token in one of the two weight rows, 8 apart, that a thread has in a chunk. In the first GEMM
  /// these are the gate and up rows of one activation.
  static MEGAMOE_HD constexpr uint32_t sum(uint32_t n, uint32_t half) { return n / 2 * 4 + half * 2 + n % 2; }

  /// Column, in the tile, of a thread's activations of one chunk, whose rows are by turns 8 gate and 8 up rows.
  static MEGAMOE_HD constexpr uint32_t act_column(uint32_t chunk, uint32_t warp, uint32_t lane) {
    return chunk * (kChunkRows / 2) + warp * 8 + lane / 4;
  }
  /// Of a code in its part of staging: rows of 128 bytes, swizzled.
  static MEGAMOE_HD constexpr uint32_t code_offset(uint32_t token, uint32_t column) {
    return static_cast<uint32_t>(core::swizzle_128b(token % kStoreRows * core::kSwizzleRowBytes + column));
  }

  /// In the second GEMM a warp turns matrices of 8 weight rows x 8 tokens, one half of a chunk each: a thread's two
  /// sums of tokens become those of token lane / 4 in this column of the tile and the next.
  static MEGAMOE_HD constexpr uint32_t row_column(uint32_t chunk, uint32_t half, uint32_t warp, uint32_t lane) {
    return chunk * kChunkRows + warp * 16 + half * 8 + lane % 4 * 2;
  }
};

}  // namespace megamoe::sm90
