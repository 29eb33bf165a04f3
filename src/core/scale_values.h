// Scale tensors of callers, read as FP32 whatever their declared format.
#pragma once

#include <vector>

#include "core/bits.h"
#include "core/formats/ue8m0.h"
#include "megamoe/tensor.h"

namespace megamoe::core {

/// The scale at an element offset of a float32 or float8_e8m0 view.
inline float scale_at(const TensorView& view, int64_t offset) {
  if (view.dtype == DType::kFloat8E8M0) return ue8m0_decode(static_cast<const uint8_t*>(view.data)[offset]);
  return static_cast<const float*>(view.data)[offset];
}

/// All elements of a dense view.
inline std::vector<float> read_scales(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale_at(view, static_cast<int64_t>(i));
  return values;
}

/// A positive power of two that UE8M0 can hold.
inline bool is_power_of_two(float value) {
  const auto bits = bit_cast<uint32_t>(value);
  return (bits & 0x007fffffu) == 0 && bits != 0 && (bits >> 31) == 0 && (bits >> 23) != 0xff;
}

}  // namespace megamoe::core
