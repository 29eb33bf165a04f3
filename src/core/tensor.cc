// Views of caller-owned memory: names, sizes and density.
#include "megamoe/tensor.h"

#include <limits>

namespace megamoe {
namespace {

// a * b; the largest number where the product of hostile extents does not fit, so that no size check can be passed by
// it.
int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

}  // namespace

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return "none";
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat8E4M3:
      return "float8_e4m3fn";
    case DType::kFloat8E8M0:
      return "float8_e8m0fnu";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
  }
  return "unknown";
}

uint32_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return 0;
    case DType::kFloat8E4M3:
    case DType::kFloat8E8M0:
    case DType::kUInt8:
      return 1;
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kInt64:
      return 8;
  }
  return 0;
}

// More extents than kMaxRank give an absent view: callers then refuse it as a missing tensor instead of reading a wrong
// one.
TensorView TensorView::dense(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view;
  if (shape.size() > kMaxRank) return view;
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  view.num_dims = static_cast<uint32_t>(shape.size());
  uint32_t dim = 0;
  for (const int64_t extent : shape) view.shape[dim++] = extent;
  int64_t stride = 1;
  for (uint32_t d = view.num_dims; d-- > 0;) {
    view.strides[d] = stride;
    stride = saturating_mul(stride, view.shape[d]);
  }
  return view;
}

int64_t TensorView::num_elements() const {
  if (!present()) return 0;
  int64_t count = 1;
  for (uint32_t d = 0; d < num_dims; ++d) count = saturating_mul(count, shape[d]);
  return count;
}

bool TensorView::is_dense() const {
  if (num_elements() == 0) return true;
  int64_t stride = 1;
  for (uint32_t d = num_dims; d-- > 0;) {
    if (shape[d] != 1 && strides[d] != stride) return false;
    stride = saturating_mul(stride, shape[d]);
  }
  return true;
}

}  // namespace megamoe
