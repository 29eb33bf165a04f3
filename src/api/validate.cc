// Every precondition of the public calls and its message.
#include "api/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>

#include "core/formats/ue8m0.h"
#include "core/integer.h"
#include "core/scale_values.h"
#include "core/tensor_extent.h"

namespace megamoe::api {
namespace {

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}

std::string shape_text(const TensorView& view) {
  std::string text = "[";
  for (uint32_t i = 0; i < std::min(view.num_dims, TensorView::kMaxRank); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", view.shape[i]);
  return text + "]";
}

std::string shape_text(std::initializer_list<int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

bool has_shape(const TensorView& view, std::initializer_list<int64_t> shape) {
  if (view.num_dims != shape.size()) return false;
  uint32_t i = 0;
  for (const int64_t extent : shape)
    if (view.shape[i++] != extent) return false;
  return true;
}

/// The call that is checked, and who is to run it.
struct Context {
  const char* where;
  const backends::Backend& backend;
};

Status check_place(const Context& context, const char* what, const TensorView& view) {
  const backends::DeviceMemory* memory = context.backend.device_memory();
  if (view.device == (memory == nullptr ? Device::kCpu : memory->device())) return {};
  return invalid("{}: {} must lie in {} memory for the {} backend, got a {}", context.where, what,
                 memory == nullptr ? "host" : "GPU", context.backend.name(),
                 view.device == Device::kCpu ? "host pointer" : "CUDA device pointer");
}

/// Dtype, extents, place and presence of one tensor.
Status check_tensor(const Context& context, const char* what, const TensorView& view,
                    std::initializer_list<DType> dtypes, std::initializer_list<int64_t> shape) {
  const char* where = context.where;
  if (!view.present()) return invalid("{}: {} must be given, got an empty view", where, what);
  bool dtype_ok = false;
  std::string wanted;
  for (const DType dtype : dtypes) {
    dtype_ok = dtype_ok || view.dtype == dtype;
    wanted += fmt::format("{}{}", wanted.empty() ? "" : " or ", name(dtype));
  }
  if (!dtype_ok) return invalid("{}: {} must be {}, got {}; convert it first", where, what, wanted, name(view.dtype));
  if (!has_shape(view, shape))
    return invalid("{}: {} must have shape {}, got {}", where, what, shape_text(shape), shape_text(view));
  MEGAMOE_RETURN_IF_ERROR(check_place(context, what, view));
  if (view.data == nullptr && view.num_elements() != 0)
    return invalid("{}: {} must not be null, since it has {} elements", where, what, view.num_elements());
  return {};
}

Status check_dense(const char* where, const char* what, const TensorView& view) {
  if (view.is_dense()) return {};
  return invalid(
      "{}: {} must be dense and row-major, since weights are used in place, got other strides; copy it first", where,
      what);
}

/// Rows may be apart; the elements of a row must be neighbours.
Status check_rows(const char* where, const char* what, const TensorView& view) {
  if (view.num_elements() == 0 || view.shape[1] == 1 || view.strides[1] == 1) return {};
  return invalid("{}: the elements of a row of {} must be neighbours (stride 1), got stride {}", where, what,
                 view.strides[1]);
}

/// Rows that are written must not share elements.
Status check_rows_apart(const char* where, const char* what, const TensorView& view) {
  if (view.shape[0] <= 1 || view.shape[1] == 0 || std::abs(view.strides[0]) >= view.shape[1]) return {};
  return invalid("{}: rows of {} must not overlap, got {} columns at a row stride of {}", where, what, view.shape[1],
                 view.strides[0]);
}

/// The declared format against dtype and values.
Status check_scale_format(const char* where, const char* what, const TensorView& view, ScaleFormat format) {
  if (format == ScaleFormat::kUnspecified)
    return invalid(
        "{}: the scale format of {} must be stated (float32 or ue8m0), since FP8 scales of both kinds look alike",
        where, what);
  if (format == ScaleFormat::kFloat32 && view.dtype != DType::kFloat32)
    return invalid("{}: {} was declared as float32 scales, got {}; declare ue8m0 or convert it", where, what,
                   name(view.dtype));
  return {};
}

/// Walks every element of a scale tensor, whatever its strides.
template <class Check>
Status for_each_scale(const TensorView& view, Check check) {
  std::array<int64_t, TensorView::kMaxRank> index{};
  for (int64_t n = view.num_elements(); n > 0; --n) {
    int64_t offset = 0;
    for (uint32_t d = 0; d < view.num_dims; ++d) offset += index[d] * view.strides[d];
    MEGAMOE_RETURN_IF_ERROR(check(core::scale_at(view, offset), index));
    for (uint32_t d = view.num_dims; d-- > 0;) {
      if (++index[d] < view.shape[d]) break;
      index[d] = 0;
    }
  }
  return {};
}

/// A view of the same elements that the host can read; `copy` holds them where they lie elsewhere.
Result<TensorView> readable(const Context& context, const char* what, const TensorView& view,
                            std::unique_ptr<std::byte[]>& copy) {
  const backends::DeviceMemory* memory = context.backend.device_memory();
  const core::TensorExtent extent = core::extent_of(view);
  if (memory == nullptr || extent.bytes() == 0) return view;
  copy.reset(new (std::nothrow) std::byte[extent.bytes()]);
  if (copy == nullptr)
    return Status{Code::kOutOfMemory, fmt::format("{}: {} bytes of host memory must be free to check {}, and they are "
                                                  "not; keep its rows closer together",
                                                  context.where, extent.bytes(), what)};
  MEGAMOE_RETURN_IF_ERROR(memory->copy(copy.get(), static_cast<const std::byte*>(view.data) + extent.begin,
                                       extent.bytes(), view.device_index));
  TensorView host = view;
  host.data = copy.get() - extent.begin;
  host.device = Device::kCpu;
  return host;
}

Status check_scale_values(const Context& context, const char* what, const TensorView& view, ScaleFormat format,
                          bool must_be_finite) {
  const char* where = context.where;
  const bool must_be_powers = format == ScaleFormat::kUe8m0 && view.dtype == DType::kFloat32;
  if (!must_be_powers && !must_be_finite) return {};
  std::unique_ptr<std::byte[]> copy;
  const Result<TensorView> host = readable(context, what, view, copy);
  if (!host.ok()) return host.status();
  return for_each_scale(host.value(), [&](float scale, const auto& index) -> Status {
    const auto at = [&] { return fmt::format("[{}]", fmt::join(index.begin(), index.begin() + view.num_dims, ", ")); };
    if (must_be_finite && !std::isfinite(scale))
      return invalid("{}: every scale of {} must be finite, got {} at {}", where, what, scale, at());
    if (must_be_powers && !core::is_power_of_two(scale))
      return invalid(
          "{}: {} was declared as ue8m0, so every scale must be a power of two, got {} at {}; declare float32", where,
          what, scale, at());
    return {};
  });
}

struct NamedView {
  const char* what;
  const TensorView* view;
};
/// The tensors of experts that lie together.
struct ExpertTensors {
  NamedView w13, w13_scale, w2, w2_scale;
};

/// @param num_experts  in these tensors
Status check_experts(const Context& context, const MoeShape& shape, int64_t num_experts, ScaleFormat scale_format,
                     const ExpertTensors& t) {
  const char* where = context.where;
  const int64_t n = num_experts, h = shape.hidden, i = shape.intermediate;
  const int64_t h_blocks = h / kScaleGroup, i_blocks = core::ceil_div<int64_t>(i, kScaleGroup);
  MEGAMOE_RETURN_IF_ERROR(check_tensor(context, t.w13.what, *t.w13.view, {DType::kFloat8E4M3}, {n, 2 * i, h}));
  MEGAMOE_RETURN_IF_ERROR(check_dense(where, t.w13.what, *t.w13.view));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(context, t.w2.what, *t.w2.view, {DType::kFloat8E4M3}, {n, h, i}));
  MEGAMOE_RETURN_IF_ERROR(check_dense(where, t.w2.what, *t.w2.view));
  const TensorView& scale = *t.w13_scale.view;
  if (scale.num_dims == 3 && i % kScaleGroup != 0)
    return invalid(
        "{}: {} must have shape {} (gate and up grids apart), since intermediate {} is no multiple of 128 and "
        "one grid over both would share blocks, got {}",
        where, t.w13_scale.what, shape_text({n, 2, i_blocks, h_blocks}), i, shape_text(scale));
  const std::initializer_list<DType> scale_types = {DType::kFloat32, DType::kFloat8E8M0};
  if (scale.num_dims == 3) {
    MEGAMOE_RETURN_IF_ERROR(check_tensor(context, t.w13_scale.what, scale, scale_types, {n, 2 * i_blocks, h_blocks}));
  } else {
    MEGAMOE_RETURN_IF_ERROR(check_tensor(context, t.w13_scale.what, scale, scale_types, {n, 2, i_blocks, h_blocks}));
  }
  MEGAMOE_RETURN_IF_ERROR(
      check_tensor(context, t.w2_scale.what, *t.w2_scale.view, scale_types, {n, h_blocks, i_blocks}));
  for (const auto& [what, view] : {t.w13_scale, t.w2_scale}) {
    MEGAMOE_RETURN_IF_ERROR(check_dense(where, what, *view));
    MEGAMOE_RETURN_IF_ERROR(check_scale_format(where, what, *view, scale_format));
    MEGAMOE_RETURN_IF_ERROR(check_scale_values(context, what, *view, scale_format, true));
  }
  return {};
}

Status check_absent(const char* where, const char* what, const TensorView& view, const char* field) {
  if (!view.present()) return {};
  return invalid("{}: {} must be absent, since the layer was created with {} 0; drop it", where, what, field);
}

/// What the layer has besides its E experts and K slots.
Status check_extras(const LayerConfig& config, uint32_t num_ranks, const char* where) {
  const MoeShape& s = config.shape;
  const uint64_t m = config.num_shared_experts, experts = s.num_experts + m * num_ranks;
  if (experts > kMaxExperts)
    return invalid(
        "{}: num_experts and num_shared_experts of every rank must be at most {} together, got {} + {} x {} ranks = {}",
        where, kMaxExperts, s.num_experts, m, num_ranks, experts);
  if (s.top_k + m > kMaxTopK)
    return invalid("{}: top_k and num_shared_experts must be at most {} together, got {} + {}", where, kMaxTopK,
                   s.top_k, m);
  if (!std::isfinite(config.routed_scaling))
    return invalid("{}: routed_scaling must be finite, got {}; 1 leaves the weights as they are", where,
                   config.routed_scaling);
  if (config.num_logical_experts > kMaxExperts)
    return invalid("{}: num_logical_experts must be at most {}, got {}; 0 means that topk_ids name physical experts",
                   where, kMaxExperts, config.num_logical_experts);
  if (config.num_logical_experts != 0 && s.top_k > config.num_logical_experts)
    return invalid("{}: top_k must not exceed num_logical_experts ({}), got {}", where, config.num_logical_experts,
                   s.top_k);
  return {};
}

Status check_sizes(const MoeShape& s, const char* where) {
  if (s.hidden == 0 || s.hidden % kScaleGroup != 0)
    return invalid("{}: hidden must be a positive multiple of 128 (one FP8 scale block), got {}; pad it to {}", where,
                   s.hidden, std::max<uint32_t>(1, core::ceil_div(s.hidden, kScaleGroup)) * kScaleGroup);
  if (s.intermediate == 0 || s.intermediate % 64 != 0)
    return invalid(
        "{}: intermediate must be a positive multiple of 64 (half a scale block), got {}; pad it to {} with zeros",
        where, s.intermediate, std::max<uint32_t>(1, core::ceil_div(s.intermediate, 64u)) * 64);
  constexpr uint32_t kMaxExtent = 1u << 24;
  if (s.hidden > kMaxExtent || s.intermediate > kMaxExtent)
    return invalid("{}: hidden and intermediate must be at most {}, got {} and {}", where, kMaxExtent, s.hidden,
                   s.intermediate);
  if (s.num_experts == 0 || s.num_experts > kMaxExperts)
    return invalid("{}: num_experts must be between 1 and {}, got {}", where, kMaxExperts, s.num_experts);
  if (s.top_k == 0 || s.top_k > kMaxTopK)
    return invalid("{}: top_k must be between 1 and {}, got {}", where, kMaxTopK, s.top_k);
  if (s.top_k > s.num_experts)
    return invalid("{}: top_k must not exceed num_experts ({}), got {}", where, s.num_experts, s.top_k);
  return {};
}

}  // namespace

Status validate_config(const LayerConfig& config, uint32_t num_ranks) {
  const char* where = "moe_layer.create";
  const MoeShape& s = config.shape;
  MEGAMOE_RETURN_IF_ERROR(check_sizes(s, where));
  if (num_ranks == 0 || num_ranks > kMaxRanks)
    return invalid("{}: the number of ranks must be between 1 and {}, got {}", where, kMaxRanks, num_ranks);
  if (s.num_experts % num_ranks != 0) {
    std::string usable;
    for (uint32_t ranks = 1; ranks <= std::min(kMaxRanks, s.num_experts); ++ranks)
      if (s.num_experts % ranks == 0) usable += fmt::format("{}{}", usable.empty() ? "" : ", ", ranks);
    return invalid(
        "{}: num_experts must be divisible by the number of ranks, got {} experts on {} ranks; usable rank counts: {}",
        where, s.num_experts, num_ranks, usable);
  }
  MEGAMOE_RETURN_IF_ERROR(check_extras(config, num_ranks, where));
  if (config.max_tokens_per_rank == 0) return invalid("{}: max_tokens_per_rank must be at least 1, got 0", where);
  if (config.swiglu_clamp && !(*config.swiglu_clamp > 0))
    return invalid("{}: swiglu_clamp must be greater than 0, got {}; leave it unset for no clamp", where,
                   *config.swiglu_clamp);
  if (config.timeout_ns == 0) return invalid("{}: timeout_ns must be greater than 0, got 0", where);
  constexpr uint32_t kMaxThreads = 1024;
  if (config.num_threads > kMaxThreads)
    return invalid("{}: num_threads must be at most {}, got {}; 0 chooses", where, kMaxThreads, config.num_threads);
  return {};
}

Status validate_weights(const ExpertWeights& weights, const LayerConfig& config, uint32_t local_experts,
                        const backends::Backend& backend) {
  const char* where = "moe_layer.load_weights";
  const Context context{where, backend};
  if (weights.w13_layout == W13Layout::kUnspecified)
    return invalid(
        "{}: w13_layout must be stated (gate_up, up_gate, interleaved_1 or interleaved_8), since gate and up rows look "
        "alike",
        where);
  MEGAMOE_RETURN_IF_ERROR(check_experts(context, config.shape, local_experts, weights.scale_format,
                                        {{"w13", &weights.w13},
                                         {"w13_scale", &weights.w13_scale},
                                         {"w2", &weights.w2},
                                         {"w2_scale", &weights.w2_scale}}));
  const ExpertTensors shared = {{"shared_w13", &weights.shared_w13},
                                {"shared_w13_scale", &weights.shared_w13_scale},
                                {"shared_w2", &weights.shared_w2},
                                {"shared_w2_scale", &weights.shared_w2_scale}};
  if (config.num_shared_experts != 0)
    return check_experts(context, config.shape, config.num_shared_experts, weights.scale_format, shared);
  for (const auto& [what, view] : {shared.w13, shared.w13_scale, shared.w2, shared.w2_scale})
    MEGAMOE_RETURN_IF_ERROR(check_absent(where, what, *view, "num_shared_experts"));
  return {};
}

namespace {

/// The tensors that only some layers and calls have.
Status check_extra_args(const Context& context, const ForwardArgs& args, const LayerConfig& config,
                        uint32_t num_ranks) {
  const char* where = context.where;
  const int64_t t = args.hidden_states.shape[0], m = config.num_shared_experts;
  if (m == 0) {
    MEGAMOE_RETURN_IF_ERROR(check_absent(where, "shared_weights", args.shared_weights, "num_shared_experts"));
  } else if (args.shared_weights.present()) {
    MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "shared_weights", args.shared_weights, {DType::kFloat32}, {t, m}));
  }
  const TensorView& map = args.expert_map;
  const int64_t num_logical = config.num_logical_experts;
  if (num_logical == 0) {
    MEGAMOE_RETURN_IF_ERROR(check_absent(where, "expert_map", map, "num_logical_experts"));
  } else if (map.num_dims == 2) {
    if (map.shape[1] < 1 || map.shape[1] > int64_t{config.shape.num_experts})
      return invalid("{}: expert_map must have between 1 and {} copies of each logical expert, got shape {}", where,
                     config.shape.num_experts, shape_text(map));
    MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "expert_map", map, {DType::kInt32}, {num_logical, map.shape[1]}));
  } else {
    MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "expert_map", map, {DType::kInt32}, {num_logical}));
  }
  const TensorView& counts = args.cumulative_recv_counts;
  if (!counts.present()) return {};
  MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "cumulative_recv_counts", counts, {DType::kInt32, DType::kInt64},
                                       {int64_t{config.shape.num_experts / num_ranks}}));
  if (counts.is_dense()) return {};
  return invalid("{}: cumulative_recv_counts must be dense, got stride {}", where, counts.strides[0]);
}

}  // namespace

Status validate_active_ranks(const ForwardArgs& args, uint32_t rank, uint32_t num_ranks) {
  const char* where = "moe_layer.forward";
  const auto contains = [&](uint32_t r) { return (args.active_ranks[r / 64] >> r % 64 & 1) != 0; };
  if (args.active_ranks[0] == 0 && args.active_ranks[1] == 0) return {};
  constexpr uint32_t kNumBits = 128;
  for (uint32_t other = num_ranks; other < kNumBits; ++other)
    if (contains(other))
      return invalid("{}: active_ranks must be a set of ranks below {}, got rank {} in it", where, num_ranks, other);
  if (!contains(rank))
    return invalid(
        "{}: active_ranks must contain the rank that calls, since the others do not wait for ranks that are left out, "
        "and rank {} is not in it; do not call forward there",
        where, rank);
  return {};
}

Status validate_forward(const ForwardArgs& args, const LayerConfig& config, uint32_t num_ranks,
                        const backends::Backend& backend) {
  const char* where = "moe_layer.forward";
  const Context context{where, backend};
  const int64_t h = config.shape.hidden, k = config.shape.top_k;
  if (args.cuda_stream && backend.device_memory() == nullptr)
    return {Code::kNotSupported,
            fmt::format("{}: cuda_stream needs backend cuda, since backend {} runs a call on the calling thread; leave "
                        "it unset",
                        where, backend.name())};
  if (args.swiglu_clamp && !(*args.swiglu_clamp > 0))
    return invalid("{}: swiglu_clamp must be greater than 0, got {}; leave it unset for the layer's", where,
                   *args.swiglu_clamp);
  const TensorView& x = args.hidden_states;
  if (!x.present() || x.num_dims != 2)
    return invalid("{}: hidden_states must have shape [tokens, {}], got {}", where, h, shape_text(x));
  const int64_t t = x.shape[0];
  if (t < 0) return invalid("{}: the number of tokens must not be negative, got {}", where, t);
  if (t > int64_t{config.max_tokens_per_rank})
    return invalid(
        "{}: the number of tokens must not exceed max_tokens_per_rank, got {} tokens > {}; create the layer with a "
        "larger capacity or split the batch",
        where, t, config.max_tokens_per_rank);
  MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "hidden_states", x, {DType::kBFloat16, DType::kFloat8E4M3}, {t, h}));
  MEGAMOE_RETURN_IF_ERROR(check_rows(where, "hidden_states", x));
  const TensorView& scale = args.hidden_states_scale;
  if (x.dtype == DType::kFloat8E4M3) {
    MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "hidden_states_scale", scale, {DType::kFloat32, DType::kFloat8E8M0},
                                         {t, h / kScaleGroup}));
    MEGAMOE_RETURN_IF_ERROR(check_scale_format(where, "hidden_states_scale", scale, args.scale_format));
    if (!args.cuda_stream)
      MEGAMOE_RETURN_IF_ERROR(check_scale_values(context, "hidden_states_scale", scale, args.scale_format, false));
  } else if (scale.present()) {
    return invalid(
        "{}: hidden_states_scale must be absent for bfloat16 tokens, which are quantised here; drop it or pass "
        "float8_e4m3fn tokens",
        where);
  }
  MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "topk_ids", args.topk_ids, {DType::kInt32, DType::kInt64}, {t, k}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "topk_weights", args.topk_weights, {DType::kFloat32}, {t, k}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(context, "output", args.output, {DType::kBFloat16}, {t, h}));
  MEGAMOE_RETURN_IF_ERROR(check_rows(where, "output", args.output));
  MEGAMOE_RETURN_IF_ERROR(check_rows_apart(where, "output", args.output));
  return check_extra_args(context, args, config, num_ranks);
}

Status validate_input_views(const ForwardArgs& args, const InputViews& views) {
  const auto overlap = [](const TensorView& view, const TensorView& with) {
    const core::TensorExtent a = core::extent_of(view), b = core::extent_of(with);
    const auto* data = static_cast<const std::byte*>(view.data);
    const auto* other = static_cast<const std::byte*>(with.data);
    return a.bytes() != 0 && data + a.begin < other + b.end && other + b.begin < data + a.end;
  };
  const auto leads = [](const TensorView& view, const TensorView& of) {
    return view.data == of.data && view.dtype == of.dtype && view.is_dense();
  };
  const TensorView &x = args.hidden_states, &scale = args.hidden_states_scale;
  bool inside = overlap(x, views.codes) || overlap(x, views.scales);
  if (scale.present()) inside = inside || overlap(scale, views.codes) || overlap(scale, views.scales);
  if (!inside || (leads(x, views.codes) && leads(scale, views.scales))) return {};
  return invalid(
      "moe_layer.forward: hidden_states and hidden_states_scale must both be the layer's input views from their first "
      "row on (dense), or lie outside them, since a call overwrites these views, got a mixture; copy the tokens");
}

}  // namespace megamoe::api
