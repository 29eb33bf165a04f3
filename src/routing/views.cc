// Routing on callers' tensors.
#include "routing/views.h"

#include <algorithm>
#include <string>

namespace megamoe::routing {
namespace {

std::string text_of(const int64_t* extents, size_t count) {
  std::string text;
  for (size_t dim = 0; dim < count; ++dim) text += (dim == 0 ? "" : ", ") + std::to_string(extents[dim]);
  return "[" + text + "]";
}

}  // namespace

Status check_tensor(const char* what, const TensorView& view, std::initializer_list<DType> dtypes,
                    std::initializer_list<int64_t> shape) {
  const auto refuse = [&](const std::string& must, const std::string& got, const char* remedy) {
    return Status(Code::kInvalidArgument,
                  std::string("router.route: ") + what + " must " + must + ", got " + got + "; " + remedy);
  };
  if (!view.present()) return refuse("be given", "none", "pass it");
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
    std::string names;
    for (const DType dtype : dtypes) names += (names.empty() ? "" : " or ") + std::string(name(dtype));
    return refuse("be " + names, std::string(name(view.dtype)), "convert it");
  }
  if (view.device != Device::kCpu) return refuse("lie in host memory", "memory of a GPU", "copy it");
  if (view.num_dims != shape.size() || !std::equal(shape.begin(), shape.end(), view.shape.begin()) ||
      std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; })) {
    return refuse("have shape " + text_of(shape.begin(), shape.size()), text_of(view.shape.data(), view.num_dims),
                  "a row stands for each token");
  }
  if (!view.is_dense()) return refuse("be dense, row after row", "other strides", "copy it");
  if (view.data == nullptr && view.num_elements() > 0) return refuse("have data", "null", "pass its address");
  return {};
}

Status choose_experts(const RouterConfig& config, const TensorView& logits, const TensorView& correction_bias,
                      const TensorView& topk_ids, const TensorView& topk_weights) {
  using enum DType;
  MEGAMOE_RETURN_IF_ERROR(validate(config));
  const int64_t num_tokens = logits.shape[0];
  MEGAMOE_RETURN_IF_ERROR(check_tensor("logits", logits, {kFloat32}, {num_tokens, config.num_experts}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor("topk_ids", topk_ids, {kInt64}, {num_tokens, config.top_k}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor("topk_weights", topk_weights, {kFloat32}, {num_tokens, config.top_k}));
  if (config.has_correction_bias) {
    MEGAMOE_RETURN_IF_ERROR(check_tensor("correction_bias", correction_bias, {kFloat32}, {config.num_experts}));
  } else if (correction_bias.present()) {
    return {Code::kInvalidArgument,
            "router.route: correction_bias must be absent where has_correction_bias is not set, got one; set it"};
  }
  choose_experts(config, elements<const float>(logits), elements<const float>(correction_bias),
                 elements<int64_t>(topk_ids), elements<float>(topk_weights));
  return {};
}

}  // namespace megamoe::routing
