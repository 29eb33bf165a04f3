// MXFP4 weights as E4M3 codes with one scale per 128 x 128 block.
#include "io/mxfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/formats/e4m3.h"
#include "core/formats/ue8m0.h"
#include "core/integer.h"
#include "io/text.h"
#include "megamoe/shape.h"

namespace megamoe::io {
namespace {

constexpr int kExponentBias = 127;
constexpr int kHeadroom = 6;  // 6 * 2^6 = 384 is the largest that stays below 448.
constexpr std::array<float, 8> kMagnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
constexpr uint8_t kMagnitudeMask = 7;
constexpr uint8_t kSignBit = 8;

bool is_zero_run(const uint8_t* packed) {
  return std::all_of(packed, packed + kMxfp4Run / 2,
                     [](uint8_t pair) { return ((pair & kMagnitudeMask) | (pair >> 4 & kMagnitudeMask)) == 0; });
}

/// Codes of the 16 numbers in a run whose exponent is `depth` below the highest, and whether each is exact.
struct CodeTable {
  std::array<uint8_t, 16> code{};
  std::array<bool, 16> rounded{};

  explicit CodeTable(int depth) {
    const int shift = kHeadroom - depth;
    for (size_t nibble = 0; nibble < code.size(); ++nibble) {
      const float value = std::ldexp(kMagnitudes[nibble & kMagnitudeMask], shift);
      code[nibble] = core::e4m3_encode((nibble & kSignBit) != 0 ? -value : value);
      rounded[nibble] = std::fabs(core::e4m3_decode(code[nibble])) != value;
    }
  }
};

/// Deeper runs are all zero.
constexpr int kDeepest = 31;

const CodeTable& table_at(int depth) {
  static const std::vector<CodeTable> kTables = [] {
    std::vector<CodeTable> tables;
    for (int each = 0; each <= kDeepest; ++each) tables.emplace_back(each);
    return tables;
  }();
  return kTables[static_cast<size_t>(std::clamp(depth, 0, kDeepest))];
}

}  // namespace

Status expand_mxfp4(const uint8_t* packed, const uint8_t* exponents, uint64_t num_rows, uint64_t num_cols,
                    uint8_t* codes, float* scales, uint64_t& num_rounded, std::string_view tensor_name) {
  const uint64_t runs_per_row = num_cols / kMxfp4Run;
  const uint64_t runs_per_block = kScaleGroup / kMxfp4Run;
  const uint64_t num_col_blocks = core::ceil_div<uint64_t>(num_cols, kScaleGroup);
  for (uint64_t run = 0; run < num_rows * runs_per_row; ++run) {
    if (exponents[run] == core::kUe8m0NanCode) {
      return {Code::kBadFile,
              fmt::format("moe_weights.load: every MXFP4 scale must be a number, tensor \"{}\" has NaN (0xff) at row "
                          "{}, column {}",
                          printable(tensor_name), run / runs_per_row, run % runs_per_row)};
    }
  }
  for (uint64_t row_begin = 0; row_begin < num_rows; row_begin += kScaleGroup) {
    const uint64_t row_end = std::min<uint64_t>(row_begin + kScaleGroup, num_rows);
    for (uint64_t run_begin = 0; run_begin < runs_per_row; run_begin += runs_per_block) {
      const uint64_t run_end = std::min(run_begin + runs_per_block, runs_per_row);
      int highest = 0;
      for (uint64_t row = row_begin; row < row_end; ++row) {
        for (uint64_t run = row * runs_per_row + run_begin; run < row * runs_per_row + run_end; ++run) {
          if (!is_zero_run(packed + run * kMxfp4Run / 2)) highest = std::max<int>(highest, exponents[run]);
        }
      }
      scales[row_begin / kScaleGroup * num_col_blocks + run_begin / runs_per_block] =
          std::ldexp(1.0f, highest - kExponentBias - kHeadroom);
      for (uint64_t row = row_begin; row < row_end; ++row) {
        for (uint64_t run = row * runs_per_row + run_begin; run < row * runs_per_row + run_end; ++run) {
          const CodeTable& table = table_at(highest - exponents[run]);
          for (uint64_t col = 0; col < kMxfp4Run; ++col) {
            const uint8_t pair = packed[(run * kMxfp4Run + col) / 2];
            const uint8_t nibble = col % 2 == 0 ? pair & 0x0f : pair >> 4;
            codes[run * kMxfp4Run + col] = table.code[nibble];
            num_rounded += table.rounded[nibble] ? 1 : 0;
          }
        }
      }
    }
  }
  return {};
}

}  // namespace megamoe::io
