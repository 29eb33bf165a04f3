// Routing on callers' tensors: every type, shape and stride checked by name before anything is read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "megamoe/status.h"
#include "megamoe/tensor.h"
#include "routing/router.h"

namespace megamoe::routing {

/// Whether `view` is dense host memory of one of `dtypes` and of this shape. kInvalidArgument naming `what`.
Status check_tensor(const char* what, const TensorView& view, std::initializer_list<DType> dtypes,
                    std::initializer_list<int64_t> shape);

/// The elements of a view that was checked.
template <class T>
std::span<T> elements(const TensorView& view) {
  return {static_cast<T*>(view.data), static_cast<size_t>(view.num_elements())};
}

/// choose_experts() of router.h for T tokens. kInvalidArgument naming a setting or a tensor that cannot be.
/// @param logits           [T, num_experts] float32
/// @param correction_bias  [num_experts] float32; absent without has_correction_bias
/// @param topk_ids         [T, top_k] int64
/// @param topk_weights     [T, top_k] float32
Status choose_experts(const RouterConfig& config, const TensorView& logits, const TensorView& correction_bias,
                      const TensorView& topk_ids, const TensorView& topk_weights);

}  // namespace megamoe::routing
