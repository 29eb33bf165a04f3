// With swapped operands every activation must land where the store warp looks for it, every result in its row. The
// instruction's layouts are stated here again, from PTX ISA 9.7.15 (wgmma) and 9.7.14 (movmatrix), not from the header.
#include "backends/sm90/swapped_tiling.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace megamoe::sm90 {
namespace {

using Tiling = SwappedTiling;
constexpr uint32_t kWarps = 4, kLanes = 32, kTileN = Tiling::kChunks * Tiling::kChunkRows;
constexpr std::array<uint32_t, 4> kWidths{8, 16, 32, 64};

struct Element {
  uint32_t weight_row = 0;  ///< In the tile.
  uint32_t token = 0;
  bool operator==(const Element&) const = default;
};

/// What the multiply leaves in register `i` of a thread's fragment of 64 rows.
Element element(uint32_t chunk, uint32_t warp, uint32_t lane, uint32_t i) {
  return {chunk * 64 + warp * 16 + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

template <class Visit>
void for_each_thread(Visit visit) {
  for (uint32_t chunk = 0; chunk < Tiling::kChunks; ++chunk)
    for (uint32_t warp = 0; warp < kWarps; ++warp)
      for (uint32_t lane = 0; lane < kLanes; ++lane) visit(chunk, warp, lane);
}

TEST(SwappedTiling, EverySumOfAThreadBelongsToOneOfItsTokens) {
  for (const uint32_t width : kWidths) {
    std::vector<uint32_t> seen(Tiling::num_sums(width));
    for (uint32_t n = 0; n < Tiling::num_tokens(width); ++n)
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t i = Tiling::sum(n, half);
        ASSERT_LT(i, seen.size());
        ++seen[i];
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          EXPECT_EQ(element(0, 0, lane, i).token, Tiling::token(lane, n));
          EXPECT_EQ(element(0, 0, lane, i).weight_row, lane / 4 + half * 8);
        }
      }
    EXPECT_EQ(seen, std::vector<uint32_t>(seen.size(), 1)) << "width " << width;
  }
}

TEST(SwappedTiling, EveryCodeLandsOnceWhereTheTensorCopyReadsIt) {
  for (const uint32_t width : kWidths) {
    std::vector<uint32_t> seen(uint64_t{64} * 128);  // [part of staging][16 rows of 128 bytes]
    for_each_thread([&](uint32_t chunk, uint32_t warp, uint32_t lane) {
      for (uint32_t n = 0; n < Tiling::num_tokens(width); ++n) {
        const Element gate = element(chunk, warp, lane, Tiling::sum(n, 0));
        const Element up = element(chunk, warp, lane, Tiling::sum(n, 1));
        // 8 gate rows, then the 8 up rows of the same columns.
        const uint32_t column = gate.weight_row / 16 * 8 + gate.weight_row % 8;
        ASSERT_EQ(gate.weight_row / 8 % 2, 0u);
        ASSERT_EQ(up, (Element{gate.weight_row + 8, gate.token}));
        ASSERT_EQ(Tiling::act_column(chunk, warp, lane), column);
        const uint32_t offset = Tiling::code_offset(Tiling::token(lane, n), column);
        const uint32_t row = gate.token % 16;
        ASSERT_EQ(offset, row * 128 + ((column / 16) ^ (row % 8)) * 16 + column % 16);
        ++seen[gate.token / 16 * 2048 + offset];
      }
    });
    uint32_t num_written = 0;
    for (const uint32_t count : seen) {
      EXPECT_LE(count, 1u);
      num_written += count;
    }
    EXPECT_EQ(num_written, width * 128) << "width " << width;
  }
}

TEST(SwappedTiling, EveryResultLandsOnceInTheRowOfItsToken) {
  for (const uint32_t width : kWidths) {
    std::vector<uint32_t> seen(uint64_t{width} * kTileN);
    for_each_thread([&](uint32_t chunk, uint32_t warp, uint32_t lane) {
      for (uint32_t n = 0; n < width / 8; ++n)
        for (uint32_t half = 0; half < 2; ++half)
          for (uint32_t e = 0; e < 2; ++e) {
            // Transposed, a lane has elements 2 * (lane % 4) + e of row lane / 4: lane r * 4 + c / 2 had element c % 2
            // of row r in its register.
            const uint32_t row = lane % 4 * 2 + e, column = lane / 4;
            const uint32_t i = Tiling::sum(n * 2, half) + column % 2;
            const Element from = element(chunk, warp, row * 4 + column / 2, i);
            const uint32_t token = n * 8 + lane / 4;
            ASSERT_EQ((Element{Tiling::row_column(chunk, half, warp, lane) + e, token}), from);
            ++seen[token * kTileN + from.weight_row];
          }
    });
    EXPECT_EQ(seen, std::vector<uint32_t>(seen.size(), 1)) << "width " << width;
  }
}

}  // namespace
}  // namespace megamoe::sm90
