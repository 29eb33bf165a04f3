// The FP64 oracle on the device: the formulas of core/reference, for layers whose rows take seconds on the host.
#pragma once

#include <optional>
#include <vector>

#include "device/device_data.h"

namespace megamoe::device_check {

/// Distances of rows, each relative L2; a row with a NaN or an infinity that does not match counts as infinite.
struct RowFigures {
  uint64_t num_rows = 0;
  double worst = 0;
  double sum = 0;
  double mean() const { return sum / static_cast<double>(num_rows == 0 ? 1 : num_rows); }
};

/// Judged in stages, each from what the device itself had.
struct StageFigures {
  uint64_t input_differs = 0;  ///< Codes and scales of tokens that are not the oracle's.
  uint64_t num_codes = 0;
  uint64_t neighbours = 0;  ///< Codes of the intermediate that are the next E4M3 number.
  uint64_t far = 0;         ///< Further off.
  double worst_far = 0;     ///< Of 448.
  double worst_scale = 0;   ///< Relative.
  RowFigures rows;          ///< Of the second GEMM, the oracle continued from the device's codes.
};

class DeviceOracle {
 public:
  DeviceOracle(const DeviceWeights& weights, std::optional<float> clamp);

  /// The output rows of these tokens of one rank's call, end to end.
  RowFigures judge_rows(const DeviceTokens& tokens, const std::vector<uint32_t>& rows) const;
  /// The stages of these tokens' slots, from what the call that ended last left in the workspace of the only rank.
  /// Slots whose block has left the ring of activations are skipped.
  StageFigures judge_stages(const protocol::RankView& view, const DeviceTokens& tokens,
                            const std::vector<uint32_t>& rows) const;

 private:
  const DeviceWeights& weights_;
  double limit_;
  DeviceBuffer table_;  ///< The 256 E4M3 numbers.
};

}  // namespace megamoe::device_check
