// One matrix of weights inside a checkpoint: found by name, checked by type and shape.
#include "io/weight_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/mxfp4.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

using Shape = std::vector<uint64_t>;

std::string text_of(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool holds_all_experts(Packing packing) { return packing != Packing::kPerExpert; }
bool is_half(const MatrixRequest& request) {
  return holds_all_experts(request.packing) && request.which != Projection::kDown;
}

/// Rows and columns as one tensor holds them: of a tensor over all experts, gate and up together.
struct Stored {
  uint64_t num_rows;
  uint64_t num_cols;
};

Stored stored_extent(const MatrixRequest& request) {
  return {request.extent.num_rows * (is_half(request) ? 2 : 1), request.extent.num_cols};
}

/// Finds and checks one matrix.
class Finder {
 public:
  Finder(const ModelConfig& config, const MatrixRequest& request, Source& source, Problems& problems)
      : config_(config), request_(request), source_(source), problems_(problems) {}

  void check(const Checkpoint& checkpoint) {
    source_.weight = checkpoint.find(request_.weight_name);
    source_.scale = checkpoint.find(request_.scale_name);
    if (source_.weight.info == nullptr) {
      problems_.missing.push_back(request_.weight_name);
      return;
    }
    switch (source_.weight.info->dtype) {
      case FileDType::kFloat8E4M3:
        source_.format = WeightFormat::kFp8Blocks;
        check_fp8();
        return;
      case FileDType::kInt8:
      case FileDType::kUInt8:
        source_.format = WeightFormat::kMxfp4;
        check_mxfp4();
        return;
      case FileDType::kBFloat16:
        source_.format = WeightFormat::kBf16;
        break;
      case FileDType::kFloat16:
        source_.format = WeightFormat::kF16;
        break;
      case FileDType::kFloat32:
        source_.format = WeightFormat::kF32;
        break;
      default:
        problems_.unsupported.push_back(fmt::format("{} must be F8_E4M3, MXFP4, BF16, F16 or F32, is {}",
                                                    printable(request_.weight_name), describe(*source_.weight.info)));
        return;
    }
    check_weight_shape(1);
    if (source_.scale.info != nullptr) {
      problems_.mismatched.push_back(fmt::format("{} is {} and must have no scale, {} is there",
                                                 printable(request_.weight_name), describe(*source_.weight.info),
                                                 printable(request_.scale_name)));
    }
  }

 private:
  /// Shape and place of a tensor of which one element stands for `elements_per_column` columns.
  MatrixPart part(uint64_t row_elements) const {
    const Stored stored = stored_extent(request_);
    const uint64_t half = request_.which == Projection::kUp ? 1 : 0;
    const uint64_t first = request_.expert * stored.num_rows * row_elements;
    switch (request_.packing) {
      case Packing::kPerExpert:
        return {0, row_elements, 1};
      case Packing::kAllExperts:
        return {first + half * request_.extent.num_rows * row_elements, row_elements, 1};
      case Packing::kAllExpertsTransposed:
        return {first + half * request_.extent.num_rows, 1, stored.num_rows};
      case Packing::kAllExpertsMxfp4Blocks:
        return {first + half * row_elements, row_elements * (is_half(request_) ? 2 : 1), 1};
    }
    return {};
  }

  /// `columns_per_element`: 1, or 2 for packed 4-bit numbers.
  void check_weight_shape(uint64_t columns_per_element) {
    const Stored stored = stored_extent(request_);
    const uint64_t row_elements = stored.num_cols / columns_per_element;
    Shape wanted = {stored.num_rows, row_elements};
    if (request_.packing == Packing::kAllExpertsTransposed) std::swap(wanted[0], wanted[1]);
    if (request_.packing == Packing::kAllExpertsMxfp4Blocks) {
      wanted = {stored.num_rows, stored.num_cols / kMxfp4Run, kMxfp4Run / 2};
    }
    if (holds_all_experts(request_.packing)) wanted.insert(wanted.begin(), request_.num_experts);
    const TensorInfo& weight = *source_.weight.info;
    if (weight.shape != wanted) {
      mismatch(fmt::format("{} must be {} by config.json, is {}", printable(weight.name), text_of(wanted),
                           describe(weight)));
    }
    source_.weight_part = part(row_elements);
  }

  void check_fp8() {
    check_weight_shape(1);
    if (source_.scale.info == nullptr) {
      problems_.missing.push_back(request_.scale_name);
      return;
    }
    const TensorInfo& scale = *source_.scale.info;
    if (config_.quantization != Quantization::kFp8Blocks) {
      mismatch(fmt::format("{} is FP8 and needs quantization_config in config.json to say what its scales cover",
                           printable(request_.weight_name)));
    }
    if (scale.dtype != FileDType::kFloat32 && scale.dtype != FileDType::kBFloat16 &&
        scale.dtype != FileDType::kFloat8E8M0) {
      problems_.unsupported.push_back(
          fmt::format("{} must be F32, BF16 or F8_E8M0, is {}", printable(scale.name), describe(scale)));
      return;
    }
    if (holds_all_experts(request_.packing)) {
      check_scales_of_all_experts(scale);
      return;
    }
    // Writers squeeze grids with one row or column to one dimension; in one dimension the order can only be row by row.
    const Extent& extent = request_.extent;
    const bool as_grid = scale.shape == Shape{extent.num_row_blocks(), extent.num_col_blocks()};
    const bool squeezed = scale.shape.size() < 2 && scale.num_elements() == extent.num_blocks();
    if (!as_grid && !squeezed) {
      mismatch(fmt::format("{} must be [{}, {}] (128 x 128 blocks) or {} in one dimension, is {}",
                           printable(scale.name), extent.num_row_blocks(), extent.num_col_blocks(), extent.num_blocks(),
                           describe(scale)));
    }
    source_.scale_part = {0, extent.num_col_blocks(), 1};
  }

  void check_scales_of_all_experts(const TensorInfo& scale) {
    const Extent& extent = request_.extent;
    if (request_.packing != Packing::kAllExperts || (is_half(request_) && extent.num_rows % kScaleGroup != 0)) {
      problems_.unsupported.push_back(
          fmt::format("{} is FP8 with blocks that reach from gate into up rows, or transposed: a tensor for each "
                      "expert, or BF16, would be loaded",
                      printable(request_.weight_name)));
      return;
    }
    const uint64_t row_blocks = extent.num_row_blocks() * (is_half(request_) ? 2 : 1);
    const Shape wanted = {request_.num_experts, row_blocks, extent.num_col_blocks()};
    if (scale.shape != wanted) {
      mismatch(fmt::format("{} must be {} (128 x 128 blocks), is {}", printable(scale.name), text_of(wanted),
                           describe(scale)));
    }
    const uint64_t half = request_.which == Projection::kUp ? extent.num_blocks() : 0;
    source_.scale_part = {request_.expert * row_blocks * extent.num_col_blocks() + half, extent.num_col_blocks(), 1};
  }

  void check_mxfp4() {
    const bool stated = config_.quantization == Quantization::kMxfp4 || config_.fp4_experts ||
                        request_.packing == Packing::kAllExpertsMxfp4Blocks;
    const TensorInfo* scale = source_.scale.info;
    const bool has_exponents =
        scale != nullptr && (scale->dtype == FileDType::kFloat8E8M0 || (stated && scale->dtype == FileDType::kUInt8));
    if (!has_exponents ||
        (request_.packing != Packing::kPerExpert && request_.packing != Packing::kAllExpertsMxfp4Blocks)) {
      problems_.unsupported.push_back(fmt::format(
          "{} is {} with {}: packed 4-bit weights are loaded only as MXFP4, with a scale F8_E8M0 for 32 columns",
          printable(request_.weight_name), describe(*source_.weight.info),
          scale == nullptr ? "no scale" : fmt::format("scale {}", describe(*scale))));
      return;
    }
    check_weight_shape(2);
    const Stored stored = stored_extent(request_);
    const uint64_t runs = stored.num_cols / kMxfp4Run;
    Shape wanted = {stored.num_rows, runs};
    if (holds_all_experts(request_.packing)) wanted.insert(wanted.begin(), request_.num_experts);
    if (scale->shape != wanted) {
      mismatch(fmt::format("{} must be {} (32 columns share a scale), is {}", printable(scale->name), text_of(wanted),
                           describe(*scale)));
    }
    source_.scale_part = part(runs);
  }

  void mismatch(std::string sentence) { problems_.mismatched.push_back(std::move(sentence)); }

  const ModelConfig& config_;
  const MatrixRequest& request_;
  Source& source_;
  Problems& problems_;
};

}  // namespace

Extent extent_of(uint64_t hidden, uint64_t intermediate, Projection which) {
  if (which == Projection::kDown) return {hidden, intermediate};
  return {intermediate, hidden};
}

std::string_view name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8Blocks:
      return "E4M3";
    case WeightFormat::kMxfp4:
      return "MXFP4";
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kF32:
      return "F32";
  }
  return "unknown";
}

Status Problems::status(std::string_view where, std::string_view must) const {
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
          fmt::format("{}: {}; {}", where, must, fmt::join(parts, "; "))};
}

void find_matrix(const Checkpoint& checkpoint, const ModelConfig& config, const MatrixRequest& request, Source& source,
                 Problems& problems) {
  Finder(config, request, source, problems).check(checkpoint);
}

}  // namespace megamoe::io
