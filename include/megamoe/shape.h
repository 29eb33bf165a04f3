// The words of the problem: what layer, on how many ranks.
#pragma once

#include <cstdint>

namespace megamoe {

inline constexpr uint32_t kMaxRanks = 72;      ///< One NVLink domain.
inline constexpr uint32_t kMaxExperts = 1024;  ///< Global experts of one layer.
inline constexpr uint32_t kMaxTopK = 32;       ///< Slots of one token.
inline constexpr uint32_t kScaleGroup = 128;  ///< Columns that share an activation scale; side of a weight scale block.

/// One MoE layer. Experts are placed in contiguous runs: expert e lives on rank e / (num_experts / num_ranks).
struct MoeShape {
  uint32_t hidden = 0;        ///< H, a multiple of 128.
  uint32_t intermediate = 0;  ///< I, a multiple of 64.
  uint32_t num_experts = 0;   ///< E over all ranks, 1 to 1,024, divisible by the number of ranks.
  uint32_t top_k = 0;         ///< K slots per token, 1 to 32, at most E.

  bool operator==(const MoeShape&) const = default;
};

}  // namespace megamoe
