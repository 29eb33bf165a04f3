// The pattern by which ranks try whether what one GPU writes into another's memory arrives, in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/portable.h"
#include "megamoe/shape.h"

namespace megamoe::comm {

/// One directed pair: the writer's words, then its flag. Cell w at the beginning of a region is for writer w.
struct ProbeCell {
  static constexpr uint32_t kNumWords = 7;
  uint64_t words[kNumWords];
  uint64_t flag;
};
static_assert(sizeof(ProbeCell) == 64);

/// What an owner found in a writer's cell.
enum class Heard : uint8_t { kNothing = 0, kAll = 1, kWrong = 2 };

/// One rank's part. The verdicts lie behind the cells of its own region, one byte for each writer.
struct ProbeCall {
  static constexpr uint64_t kVerdictOffset = uint64_t{kMaxRanks} * sizeof(ProbeCell);
  static constexpr uint64_t kBytes = 8192;  ///< Of a region: to be zeroed before and after.

  std::byte* base = nullptr;
  uint64_t stride_bytes = 0;
  uint32_t rank = 0;
  uint32_t num_ranks = 0;
  uint64_t timeout_ns = 0;  ///< Of the owner's wait.

  MEGAMOE_HD ProbeCell* cell(uint32_t owner, uint32_t writer) const {
    return reinterpret_cast<ProbeCell*>(base + owner * stride_bytes) + writer;
  }
  MEGAMOE_HD uint8_t* verdicts() const {
    return reinterpret_cast<uint8_t*>(base + rank * stride_bytes + kVerdictOffset);
  }
};
static_assert(ProbeCall::kVerdictOffset + kMaxRanks <= ProbeCall::kBytes);

/// Never 0; another for every pair and word. Word kNumWords is the flag.
MEGAMOE_HD inline uint64_t probe_word(uint32_t writer, uint32_t owner, uint32_t word) {
  const uint64_t x = ((uint64_t{writer} * kMaxRanks + owner) * 8 + word + 1) * 0x9e3779b97f4a7c15u;
  return (x ^ (x >> 29)) | 1;
}

}  // namespace megamoe::comm
