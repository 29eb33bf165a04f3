// Error texts and views of the C interface.
#include "capi/translate.h"

namespace megamoe::capi {

static_assert(MEGAMOE_INTERNAL == static_cast<int>(Code::kInternal) &&
              MEGAMOE_POISONED == static_cast<int>(Code::kPoisoned));
static_assert(MEGAMOE_UINT8 == static_cast<int>(DType::kUInt8) &&
              MEGAMOE_FLOAT8_E8M0 == static_cast<int>(DType::kFloat8E8M0));

std::string& last_error() {
  thread_local std::string text;
  return text;
}

megamoe_code answer(const Status& status) {
  if (!status.ok()) last_error() = status.message();
  return static_cast<megamoe_code>(status.code());
}

Status null_argument(const char* function, const char* what) {
  return {Code::kInvalidArgument, fmt::format("{}: {} must not be null", function, what)};
}

TensorView view(const megamoe_tensor& tensor) {
  TensorView out;
  if (tensor.dtype == MEGAMOE_DTYPE_NONE) return out;
  out.dtype = DType{UINT8_MAX};  // present, and of no type that anything accepts
  if (tensor.dtype < MEGAMOE_DTYPE_NONE || tensor.dtype > MEGAMOE_UINT8) return out;
  if (tensor.num_dims < 0 || tensor.num_dims > static_cast<int32_t>(TensorView::kMaxRank)) return out;
  out.data = tensor.data;
  out.dtype = static_cast<DType>(tensor.dtype);
  out.num_dims = static_cast<uint32_t>(tensor.num_dims);
  std::copy_n(tensor.shape, TensorView::kMaxRank, out.shape.begin());
  std::copy_n(tensor.strides, TensorView::kMaxRank, out.strides.begin());
  out.device = tensor.device == 0 ? Device::kCpu : Device::kCuda;
  out.device_index = tensor.device_index;
  return out;
}

megamoe_tensor tensor(const TensorView& view) {
  megamoe_tensor out = {};
  out.data = view.data;
  out.dtype = static_cast<megamoe_dtype>(view.dtype);
  out.num_dims = static_cast<int32_t>(view.num_dims);
  std::copy_n(view.shape.begin(), TensorView::kMaxRank, out.shape);
  std::copy_n(view.strides.begin(), TensorView::kMaxRank, out.strides);
  out.device = view.device == Device::kCpu ? 0 : 1;
  out.device_index = view.device_index;
  return out;
}

}  // namespace megamoe::capi
