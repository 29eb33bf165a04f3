// The experts of one layer: checked as a whole, then read.
#include "io/moe_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "core/formats/ue8m0.h"
#include "core/integer.h"
#include "io/checkpoint.h"
#include "io/expert_names.h"
#include "io/pack_weights.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

/// One projection of one expert, found and checked.
struct Source {
  Checkpoint::Tensor weight;
  Checkpoint::Tensor scale;  ///< Empty where the weight is not FP8.
};

/// What a projection must look like.
struct Extent {
  uint64_t num_rows = 0;
  uint64_t num_cols = 0;

  uint64_t num_elements() const { return num_rows * num_cols; }
  uint64_t num_row_blocks() const { return core::ceil_div<uint64_t>(num_rows, kScaleGroup); }
  uint64_t num_col_blocks() const { return core::ceil_div<uint64_t>(num_cols, kScaleGroup); }
  uint64_t num_blocks() const { return num_row_blocks() * num_col_blocks(); }
};

Extent extent_of(const MoeShape& shape, Projection which) {
  if (which == Projection::kDown) return {shape.hidden, shape.intermediate};
  return {shape.intermediate, shape.hidden};
}

bool is_fp8(const TensorInfo& info) { return info.dtype == FileDType::kFloat8E4M3; }

/// Everything that is wrong with the layer's tensors, so that one message tells all of it.
struct Problems {
  std::vector<std::string> missing;
  std::vector<std::string> unknown;
  std::vector<std::string> beyond;
  std::vector<std::string> mismatched;
  std::vector<std::string> unsupported;

  Status status(std::string_view where, uint32_t layer, uint32_t num_experts) const {
    std::vector<std::string> parts;
    const auto add = [&](std::string_view title, const std::vector<std::string>& names) {
      if (!names.empty()) parts.push_back(fmt::format("{} ({}): {}", title, names.size(), join_names(names)));
    };
    add("missing", missing);
    add("unknown", unknown);
    add("of experts that config.json does not count", beyond);
    add("not as they must be", mismatched);
    const bool bad_file = !parts.empty();
    add("of a type that is not loaded", unsupported);
    if (parts.empty()) return {};
    return {bad_file ? Code::kBadFile : Code::kNotSupported,
            fmt::format("{}: layer {} must have the weights (FP8 ones with their scales) of exactly {} experts; {}",
                        where, layer, num_experts, fmt::join(parts, "; "))};
  }
};

/// Finds and checks the tensors of all experts of the layer.
class Plan {
 public:
  Plan(const Checkpoint& checkpoint, const ModelConfig& config, uint32_t layer, const ExpertNaming& naming)
      : checkpoint_(checkpoint), config_(config), layer_(layer), naming_(naming) {}

  Status check(const std::vector<std::string_view>& names, std::string_view where) {
    check_names(names);
    sources_.resize(size_t{config_.shape.num_experts} * kNumProjections);
    for (uint32_t expert = 0; expert < config_.shape.num_experts; ++expert) {
      for (size_t which = 0; which < kNumProjections; ++which) check_one(expert, static_cast<Projection>(which));
    }
    return problems_.status(where, layer_, config_.shape.num_experts);
  }

  const Source& source(uint32_t expert, Projection which) const {
    return sources_[size_t{expert} * kNumProjections + static_cast<size_t>(which)];
  }

 private:
  /// A tensor under the experts' prefix that would be ignored might be one that matters.
  void check_names(const std::vector<std::string_view>& names) {
    const std::string prefix = naming_.prefix(layer_);
    for (const std::string_view name : names_with_prefix(names, prefix)) {
      ExpertTensorName parsed;
      if (!parse_expert_tensor(naming_, name.substr(prefix.size()), parsed)) {
        problems_.unknown.emplace_back(name);
      } else if (parsed.expert >= config_.shape.num_experts) {
        problems_.beyond.emplace_back(name);
      }
    }
  }

  void check_one(uint32_t expert, Projection which) {
    Source& source = sources_[size_t{expert} * kNumProjections + static_cast<size_t>(which)];
    const std::string scale_name = naming_.scale_name(layer_, expert, which);
    source.weight = checkpoint_.find(naming_.weight_name(layer_, expert, which));
    source.scale = checkpoint_.find(scale_name);
    if (source.weight.info == nullptr) {
      problems_.missing.push_back(naming_.weight_name(layer_, expert, which));
      return;
    }
    const TensorInfo& weight = *source.weight.info;
    const Extent extent = extent_of(config_.shape, which);
    if (weight.shape != std::vector<uint64_t>{extent.num_rows, extent.num_cols}) {
      problems_.mismatched.push_back(fmt::format("{} must be [{}, {}] by config.json, is {}", printable(weight.name),
                                                 extent.num_rows, extent.num_cols, describe(weight)));
    }
    if (is_fp8(weight)) {
      check_scale(source, scale_name, extent);
      return;
    }
    if (weight.dtype != FileDType::kBFloat16 && weight.dtype != FileDType::kFloat32) {
      problems_.unsupported.push_back(
          fmt::format("{} must be F8_E4M3, BF16 or F32, is {}", printable(weight.name), describe(weight)));
    } else if (source.scale.info != nullptr) {
      problems_.mismatched.push_back(fmt::format("{} is {} and must have no scale, {} is there", printable(weight.name),
                                                 describe(weight), printable(scale_name)));
    }
  }

  void check_scale(const Source& source, const std::string& scale_name, const Extent& extent) {
    if (source.scale.info == nullptr) {
      problems_.missing.push_back(scale_name);
      return;
    }
    const TensorInfo& scale = *source.scale.info;
    if (!config_.quantized_fp8) {
      problems_.mismatched.push_back(
          fmt::format("{} is FP8 and needs quantization_config in config.json to say what its scales cover",
                      source.weight.info->name));
    }
    if (scale.dtype != FileDType::kFloat32 && scale.dtype != FileDType::kBFloat16 &&
        scale.dtype != FileDType::kFloat8E8M0) {
      problems_.unsupported.push_back(
          fmt::format("{} must be F32, BF16 or F8_E8M0, is {}", printable(scale.name), describe(scale)));
      return;
    }
    // Writers squeeze grids with one row or column to one dimension; in one dimension the order can only be row by row.
    const bool as_grid = scale.shape == std::vector<uint64_t>{extent.num_row_blocks(), extent.num_col_blocks()};
    const bool squeezed = scale.shape.size() < 2 && scale.num_elements() == extent.num_blocks();
    if (!as_grid && !squeezed) {
      problems_.mismatched.push_back(fmt::format("{} must be [{}, {}] (128 x 128 blocks) or {} in one dimension, is {}",
                                                 printable(scale.name), extent.num_row_blocks(),
                                                 extent.num_col_blocks(), extent.num_blocks(), describe(scale)));
    }
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  uint32_t layer_;
  const ExpertNaming& naming_;
  std::vector<Source> sources_;
  Problems problems_;
};

/// Reads checked tensors into their place; keeps one tensor of scratch memory.
class Reader {
 public:
  Status read(const Source& source, const Extent& extent, uint8_t* codes, float* scales) {
    const TensorInfo& weight = *source.weight.info;
    if (is_fp8(weight)) {
      ++num_fp8_;
      MEGAMOE_RETURN_IF_ERROR(
          source.weight.file->read(weight, std::as_writable_bytes(std::span(codes, extent.num_elements()))));
      MEGAMOE_RETURN_IF_ERROR(check_codes(weight, codes, extent));
      return read_scales(source.scale, scales);
    }
    MEGAMOE_RETURN_IF_ERROR(read_scratch(source.weight));
    if (weight.dtype == FileDType::kBFloat16) {
      ++num_bf16_;
      return pack_weights_bf16(reinterpret_cast<const uint16_t*>(scratch_.data()), extent.num_rows, extent.num_cols,
                               codes, scales, weight.name);
    }
    ++num_fp32_;
    return pack_weights(reinterpret_cast<const float*>(scratch_.data()), extent.num_rows, extent.num_cols, codes,
                        scales, weight.name);
  }

  void add_notes(std::vector<std::string>& notes) const {
    const auto add = [&](uint64_t count, std::string_view sentence) {
      if (count > 0) notes.push_back(fmt::format("{} {}", count, sentence));
    };
    add(num_fp8_, "E4M3 weight tensors taken as they are");
    add(num_bf16_, "BF16 weight tensors packed to E4M3 here, one scale per 128 x 128 block");
    add(num_fp32_, "F32 weight tensors packed to E4M3 here, one scale per 128 x 128 block");
    add(num_converted_scales_, "scale tensors converted from BF16 or E8M0 to FP32, exactly");
    add(num_flat_scales_, "scale tensors stored in one dimension, read row by row");
  }

 private:
  static Status check_codes(const TensorInfo& info, const uint8_t* codes, const Extent& extent) {
    constexpr uint64_t kChunk = 4096;
    for (uint64_t begin = 0; begin < extent.num_elements(); begin += kChunk) {
      const uint64_t end = core::min(begin + kChunk, extent.num_elements());
      uint32_t num_nan = 0;
      for (uint64_t idx = begin; idx < end; ++idx) num_nan += core::e4m3_is_nan(codes[idx]) ? 1 : 0;
      if (num_nan == 0) continue;
      const uint64_t first = static_cast<uint64_t>(std::find_if(codes + begin, codes + end, core::e4m3_is_nan) - codes);
      return {Code::kBadFile,
              fmt::format("moe_weights.load: every E4M3 weight must be a number, tensor \"{}\" has NaN code "
                          "0x{:02x} at row {}, column {}",
                          printable(info.name), codes[first], first / extent.num_cols, first % extent.num_cols)};
    }
    return {};
  }

  Status read_scales(const Checkpoint::Tensor& tensor, float* scales) {
    const TensorInfo& info = *tensor.info;
    MEGAMOE_RETURN_IF_ERROR(read_scratch(tensor));
    if (info.shape.size() < 2) ++num_flat_scales_;
    if (info.dtype != FileDType::kFloat32) ++num_converted_scales_;
    for (uint64_t idx = 0; idx < info.num_elements(); ++idx) {
      float scale = 0;
      if (info.dtype == FileDType::kFloat32) {
        scale = reinterpret_cast<const float*>(scratch_.data())[idx];
      } else if (info.dtype == FileDType::kBFloat16) {
        scale = core::bf16_decode(reinterpret_cast<const uint16_t*>(scratch_.data())[idx]);
      } else {
        scale = core::ue8m0_decode(static_cast<uint8_t>(scratch_[idx]));
      }
      if (!std::isfinite(scale) || scale < 0) {
        return {Code::kBadFile,
                fmt::format("moe_weights.load: every scale must be finite and not negative, tensor \"{}\" "
                            "has {} at index {}",
                            printable(info.name), scale, idx)};
      }
      scales[idx] = scale;
    }
    return {};
  }

  Status read_scratch(const Checkpoint::Tensor& tensor) {
    const uint64_t num_bytes = tensor.info->num_bytes;
    if (scratch_.size() < num_bytes) {
      scratch_ = {};
      Result<Buffer<std::byte>> grown = Buffer<std::byte>::allocate(num_bytes, "one tensor");
      if (!grown.ok()) return grown.status();
      scratch_ = std::move(grown).value();
    }
    return tensor.file->read(*tensor.info, scratch_.span().first(num_bytes));
  }

  Buffer<std::byte> scratch_;
  uint64_t num_fp8_ = 0;
  uint64_t num_bf16_ = 0;
  uint64_t num_fp32_ = 0;
  uint64_t num_converted_scales_ = 0;
  uint64_t num_flat_scales_ = 0;
};

template <class T>
Status allocate(Buffer<T>& buffer, uint64_t count, std::string_view what) {
  Result<Buffer<T>> result = Buffer<T>::allocate(count, what);
  if (!result.ok()) return result.status();
  buffer = std::move(result).value();
  return {};
}

Status read_experts(const Plan& plan, const ExpertNaming& naming, LayerWeights& weights) {
  const MoeShape& shape = weights.shape();
  const uint64_t num_experts = weights.num_local_experts();
  const Extent gate = extent_of(shape, Projection::kGate);
  const Extent down = extent_of(shape, Projection::kDown);
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w13, num_experts * 2 * gate.num_elements(), "w13"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w13_scale, num_experts * 2 * gate.num_blocks(), "w13_scale"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w2, num_experts * down.num_elements(), "w2"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w2_scale, num_experts * down.num_blocks(), "w2_scale"));
  Reader reader;
  for (uint32_t expert = weights.expert_begin; expert < weights.expert_end; ++expert) {
    const uint64_t local_expert = expert - weights.expert_begin;
    for (uint64_t half = 0; half < 2; ++half) {
      const uint64_t place = local_expert * 2 + half;
      MEGAMOE_RETURN_IF_ERROR(reader.read(plan.source(expert, half == 0 ? Projection::kGate : Projection::kUp), gate,
                                          weights.w13.data() + place * gate.num_elements(),
                                          weights.w13_scale.data() + place * gate.num_blocks()));
    }
    MEGAMOE_RETURN_IF_ERROR(reader.read(plan.source(expert, Projection::kDown), down,
                                        weights.w2.data() + local_expert * down.num_elements(),
                                        weights.w2_scale.data() + local_expert * down.num_blocks()));
  }
  weights.notes.push_back(fmt::format("{} names: w13 is {} rows, then {} rows; w2 is {}", naming.family,
                                      naming.projection[0], naming.projection[1], naming.projection[2]));
  reader.add_notes(weights.notes);
  return {};
}

Result<LayerWeights> load(const std::string& folder, uint32_t layer,
                          std::optional<std::pair<uint32_t, uint32_t>> expert_range) {
  const std::string where = fmt::format("moe_weights.load: {}", printable(folder, 1000));
  Result<ModelConfig> config = read_model_config(folder);
  if (!config.ok()) return config.status();
  const uint32_t num_experts = config->shape.num_experts;
  const auto [expert_begin, expert_end] = expert_range.value_or(std::pair(0u, num_experts));
  if (expert_begin >= expert_end || expert_end > num_experts) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: the experts asked for must be a range inside [0, {}), got [{}, {})", where,
                              num_experts, expert_begin, expert_end));
  }
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  std::vector<std::string_view> names;
  names.reserve(checkpoint->tensors().size());
  for (const Checkpoint::Tensor& tensor : checkpoint->tensors()) names.push_back(tensor.info->name);

  const Result<const ExpertNaming*> naming = find_naming(names, layer, where);
  if (!naming.ok()) return naming.status();
  LayerWeights weights;
  weights.config = std::move(config).value();
  weights.layer = layer;
  weights.expert_begin = expert_begin;
  weights.expert_end = expert_end;
  Plan plan(checkpoint.value(), weights.config, layer, *naming.value());
  MEGAMOE_RETURN_IF_ERROR(plan.check(names, where));
  MEGAMOE_RETURN_IF_ERROR(read_experts(plan, *naming.value(), weights));
  return weights;
}

}  // namespace

Result<LayerWeights> load_moe_layer(const std::string& folder, uint32_t layer, uint32_t expert_begin,
                                    uint32_t expert_end) {
  return load(folder, layer, std::pair(expert_begin, expert_end));
}

Result<LayerWeights> load_moe_layer(const std::string& folder, uint32_t layer) { return load(folder, layer, {}); }

}  // namespace megamoe::io
