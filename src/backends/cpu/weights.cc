// Row addressing for the four w13 orders, and scale tensors brought to FP32 in the order gate, up.
#include "backends/cpu/weights.h"

#include "core/scale_values.h"

namespace megamoe::cpu {

void WeightTable::bind(const MoeShape& shape, const ExpertWeights& weights) {
  shape_ = shape;
  layout_ = weights.w13_layout;
  w13_ = static_cast<const uint8_t*>(weights.w13.data);
  w2_ = static_cast<const uint8_t*>(weights.w2.data);
  w13_scales_ = core::read_scales(weights.w13_scale);
  w2_scales_ = core::read_scales(weights.w2_scale);
}

WeightRows WeightTable::w13_rows(uint32_t local_expert, core::W13Half half, uint32_t first_row) const {
  const auto row_bytes = static_cast<int64_t>(shape_.hidden);
  const uint64_t inter = shape_.intermediate;
  const uint8_t* expert = w13_ + uint64_t{local_expert} * 2 * inter * shape_.hidden;
  const bool up = half == core::W13Half::kUp;
  switch (layout_) {
    case W13Layout::kInterleaved1:
      return {expert + (uint64_t{first_row} * 2 + up) * shape_.hidden, 2 * row_bytes, kScaleGroup, 0};
    case W13Layout::kInterleaved8:
      return {expert + (uint64_t{first_row} * 2 + uint64_t{up} * 8) * shape_.hidden, row_bytes, 8, 16 * row_bytes};
    default: {
      const bool second = up != (layout_ == W13Layout::kUpGate);
      return {expert + (second * inter + first_row) * shape_.hidden, row_bytes, kScaleGroup, 0};
    }
  }
}

const float* WeightTable::w13_scales(uint32_t local_expert, core::W13Half half, uint32_t first_row) const {
  const bool swap = layout_ == W13Layout::kUpGate;
  const auto stored = swap == (half == core::W13Half::kGate) ? core::W13Half::kUp : core::W13Half::kGate;
  const auto grid = core::W13ScaleLayout::of(shape_.hidden, shape_.intermediate);
  return w13_scales_.data() + grid.index(local_expert, stored, first_row, 0);
}

WeightRows WeightTable::w2_rows(uint32_t local_expert, uint32_t first_row) const {
  const auto row_bytes = static_cast<int64_t>(shape_.intermediate);
  return {w2_ + (uint64_t{local_expert} * shape_.hidden + first_row) * shape_.intermediate, row_bytes, kScaleGroup, 0};
}

const float* WeightTable::w2_scales(uint32_t local_expert, uint32_t first_row) const {
  const auto grid = core::W2ScaleLayout::of(shape_.hidden, shape_.intermediate);
  return w2_scales_.data() + grid.index(local_expert, first_row, 0);
}

}  // namespace megamoe::cpu
