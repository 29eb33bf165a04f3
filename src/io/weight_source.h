// One matrix of weights inside a checkpoint: where its elements lie, how they are stored, and whether that fits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/integer.h"
#include "io/checkpoint.h"
#include "io/expert_names.h"
#include "io/model_config.h"
#include "megamoe/shape.h"
#include "megamoe/status.h"

namespace megamoe::io {

/// What a matrix must look like.
struct Extent {
  uint64_t num_rows = 0;
  uint64_t num_cols = 0;

  uint64_t num_elements() const { return num_rows * num_cols; }
  uint64_t num_row_blocks() const { return core::ceil_div<uint64_t>(num_rows, kScaleGroup); }
  uint64_t num_col_blocks() const { return core::ceil_div<uint64_t>(num_cols, kScaleGroup); }
  uint64_t num_blocks() const { return num_row_blocks() * num_col_blocks(); }
};

/// [intermediate, hidden], or [hidden, intermediate] for the down projection.
Extent extent_of(uint64_t hidden, uint64_t intermediate, Projection which);

enum class WeightFormat : uint8_t { kFp8Blocks = 0, kMxfp4, kBf16, kF16, kF32 };

/// "E4M3", "MXFP4", "BF16", ...
std::string_view name(WeightFormat format);

/// Where the elements of a matrix lie in a tensor, counted in elements of that tensor.
struct MatrixPart {
  uint64_t first = 0;
  uint64_t row_stride = 0;
  uint64_t col_stride = 1;
};

/// A matrix that has been found and checked.
struct Source {
  Checkpoint::Tensor weight;
  MatrixPart weight_part;
  Checkpoint::Tensor scale;  ///< Of kFp8Blocks and kMxfp4.
  MatrixPart scale_part;
  WeightFormat format = WeightFormat::kBf16;
};

/// Everything that is wrong with a layer's tensors, so that one message tells all of it.
struct Problems {
  std::vector<std::string> missing;
  std::vector<std::string> unknown;
  std::vector<std::string> beyond;
  std::vector<std::string> mismatched;
  std::vector<std::string> unsupported;

  /// kBadFile, or kNotSupported where nothing but types is wrong. `must` says what the tensors must be.
  Status status(std::string_view where, std::string_view must) const;
};

/// One matrix among `num_matrices` that a tensor holds, found by name and checked against config.json and `extent`.
struct MatrixRequest {
  std::string weight_name;
  std::string scale_name;
  Extent extent;
  Packing packing = Packing::kPerExpert;
  Projection which = Projection::kGate;
  uint64_t expert = 0;       ///< Its place in a tensor over all experts.
  uint64_t num_experts = 1;  ///< Of a tensor over all experts.
};

/// Fills `source`; what is wrong goes to `problems`.
void find_matrix(const Checkpoint& checkpoint, const ModelConfig& config, const MatrixRequest& request, Source& source,
                 Problems& problems);

}  // namespace megamoe::io
