// Judges an output: against the FP64 oracle, row by row, and against rows that somebody else computed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cli/layer_data.h"
#include "core/reference/row_error.h"

namespace megamoe::cli {

/// The row error a correct layer stays below; docs/numerics.md has the reasons.
constexpr double oracle_limit(std::string_view backend, const MoeShape& shape) {
  if (backend != "cuda") return 1e-2;
  return shape.intermediate >= 1024 ? 1.5e-2 : 4e-2;
}

/// Against values without FP8 activations.
struct CompareLimits {
  double max_row = 0;
  double mean_row = 0;
};
inline constexpr CompareLimits kFp8WeightLimits{8e-2, 5e-2};
inline constexpr CompareLimits kPackedWeightLimits{1.1e-1, 7.5e-2};

/// Rows of the output to be checked, ascending: all, none, or a seeded choice spread evenly over the ranks.
std::vector<uint64_t> rows_to_check(const CheckChoice& choice, const LayerData& data, uint64_t seed);

/// Computes `rows` in FP64 on all cores, with a progress line. `data` must hold all ranks, and its ids must have been
/// accepted by the layer.
reference::ErrorSummary check_against_oracle(const LayerData& data, std::span<const uint16_t> output,
                                             const std::vector<uint64_t>& rows);

/// All rows against `data.compare`, which must be there.
reference::ErrorSummary check_against_compare(const LayerData& data, std::span<const uint16_t> output);

}  // namespace megamoe::cli
