// Numbers from the command line: whole words only, no sign that wraps, no fraction that is cut, no overflow.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "megamoe/status.h"

namespace megamoe::cli {

struct WholeRange {
  std::string_view where;  ///< "megamoe run --ranks"
  std::string_view noun;   ///< "ranks"
  uint64_t min = 0;
  uint64_t max = 0;
};

/// Decimal digits only, within the range. kInvalidArgument: "... ranks must be between 1 and 72, got 0; ...".
Result<uint64_t> parse_whole(std::string_view text, const WholeRange& range);

/// One or more whole numbers separated by commas, at most `max_count`.
Result<std::vector<uint32_t>> parse_wholes(std::string_view text, const WholeRange& range, size_t max_count);

/// A finite decimal number within [min, max].
Result<double> parse_real(std::string_view text, std::string_view where, std::string_view noun, double min, double max);

}  // namespace megamoe::cli
