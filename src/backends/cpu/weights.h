// This rank's experts as the GEMM reads them: borrowed codes, and FP32 scales in one order.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/backend.h"
#include "core/scales.h"
#include "megamoe/moe_layer.h"

namespace megamoe::cpu {

/// Weight rows of a tile: row i of the tile lies at codes + i * row_stride, in runs of `run_rows` rows.
struct WeightRows {
  const uint8_t* codes = nullptr;
  int64_t row_stride = 0;  ///< Bytes.
  uint32_t run_rows = 0;   ///< Rows until the next jump; at least the tile's rows where there is none.
  int64_t run_stride = 0;  ///< Bytes from one run's first row to the next run's.
};

class WeightTable final : public backends::WeightSet {
 public:
  /// Local experts from `num_routed` on are the shared ones.
  /// Precondition: the views passed validate_weights.
  void bind(const MoeShape& shape, uint32_t num_routed, const ExpertWeights& weights);

  WeightRows w13_rows(uint32_t local_expert, core::W13Half half, uint32_t first_row) const;
  const float* w13_scales(uint32_t local_expert, core::W13Half half, uint32_t first_row) const;
  WeightRows w2_rows(uint32_t local_expert, uint32_t first_row) const;
  const float* w2_scales(uint32_t local_expert, uint32_t first_row) const;

 private:
  /// Experts whose tensors lie together.
  struct Experts {
    const uint8_t* w13 = nullptr;
    const uint8_t* w2 = nullptr;
    std::vector<float> w13_scales;  // [n][2: gate, up][ceil(I / 128)][H / 128]
    std::vector<float> w2_scales;   // [n][H / 128][ceil(I / 128)]
  };

  /// Where a local expert is; makes `local_expert` the index there.
  const Experts& experts_of(uint32_t& local_expert) const {
    if (local_expert < num_routed_) return routed_;
    local_expert -= num_routed_;
    return shared_;
  }

  MoeShape shape_;
  uint32_t num_routed_ = 0;
  W13Layout layout_ = W13Layout::kUnspecified;
  Experts routed_;
  Experts shared_;
};

}  // namespace megamoe::cpu
