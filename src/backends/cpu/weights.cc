// Row addressing for the four w13 orders, and scale tensors brought to FP32 in the order gate, up.
#include "backends/cpu/weights.h"

#include "core/scale_values.h"

namespace megamoe::cpu {

void WeightTable::bind(const MoeShape& shape, uint32_t num_routed, const ExpertWeights& weights) {
  const auto bind_experts = [](Experts& experts, const TensorView& w13, const TensorView& w13_scale,
                               const TensorView& w2, const TensorView& w2_scale) {
    experts.w13 = static_cast<const uint8_t*>(w13.data);
    experts.w2 = static_cast<const uint8_t*>(w2.data);
    experts.w13_scales = core::read_scales(w13_scale);
    experts.w2_scales = core::read_scales(w2_scale);
  };
  shape_ = shape;
  num_routed_ = num_routed;
  layout_ = weights.w13_layout;
  bind_experts(routed_, weights.w13, weights.w13_scale, weights.w2, weights.w2_scale);
  shared_ = {};
  if (weights.shared_w13.present())
    bind_experts(shared_, weights.shared_w13, weights.shared_w13_scale, weights.shared_w2, weights.shared_w2_scale);
}

WeightRows WeightTable::w13_rows(uint32_t local_expert, core::W13Half half, uint32_t first_row) const {
  const auto row_bytes = static_cast<int64_t>(shape_.hidden);
  const uint64_t inter = shape_.intermediate;
  const Experts& experts = experts_of(local_expert);
  const uint8_t* expert = experts.w13 + uint64_t{local_expert} * 2 * inter * shape_.hidden;
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
  const Experts& experts = experts_of(local_expert);
  return experts.w13_scales.data() + grid.index(local_expert, stored, first_row, 0);
}

WeightRows WeightTable::w2_rows(uint32_t local_expert, uint32_t first_row) const {
  const auto row_bytes = static_cast<int64_t>(shape_.intermediate);
  const Experts& experts = experts_of(local_expert);
  return {experts.w2 + (uint64_t{local_expert} * shape_.hidden + first_row) * shape_.intermediate, row_bytes,
          kScaleGroup, 0};
}

const float* WeightTable::w2_scales(uint32_t local_expert, uint32_t first_row) const {
  const auto grid = core::W2ScaleLayout::of(shape_.hidden, shape_.intermediate);
  const Experts& experts = experts_of(local_expert);
  return experts.w2_scales.data() + grid.index(local_expert, first_row, 0);
}

}  // namespace megamoe::cpu
