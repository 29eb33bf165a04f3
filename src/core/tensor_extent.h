// Which bytes the elements of a view reach, whatever its strides.
#pragma once

#include <cstdint>

#include "megamoe/tensor.h"

namespace megamoe::core {

/// Bytes [begin, end) relative to a view's data; begin is negative where a stride is.
struct TensorExtent {
  int64_t begin = 0;
  int64_t end = 0;

  uint64_t bytes() const { return static_cast<uint64_t>(end - begin); }
};

inline TensorExtent extent_of(const TensorView& view) {
  if (view.num_elements() == 0) return {};
  int64_t first = 0, last = 0;
  for (uint32_t d = 0; d < view.num_dims; ++d) {
    const int64_t reach = (view.shape[d] - 1) * view.strides[d];
    (reach < 0 ? first : last) += reach;
  }
  const int64_t width = element_bytes(view.dtype);
  return {first * width, (last + 1) * width};
}

}  // namespace megamoe::core
