// The 128-byte shared-memory swizzle of TMA and WGMMA: within 8 rows of 128 bytes, 16-byte chunks are permuted per row.
#pragma once

#include "core/portable.h"

namespace megamoe::core {

inline constexpr uint32_t kSwizzleRowBytes = 128;
inline constexpr uint32_t kSwizzleChunkBytes = 16;
inline constexpr uint32_t kSwizzleRows =
    8;  ///< The pattern repeats after 8 rows: tiles start at multiples of 1,024 bytes.

/// Where byte `offset` of a dense [rows][128 bytes] tile lies in the swizzled tile: chunk ^= row mod 8.
MEGAMOE_HD constexpr uint64_t swizzle_128b(uint64_t offset) {
  return offset ^ (((offset / kSwizzleRowBytes) % kSwizzleRows) * kSwizzleChunkBytes);
}

/// The dense offset of byte `offset` of the swizzled tile. The permutation is its own inverse.
MEGAMOE_HD constexpr uint64_t unswizzle_128b(uint64_t offset) { return swizzle_128b(offset); }

}  // namespace megamoe::core
