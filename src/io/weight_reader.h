// Reads checked matrices: as E4M3 codes with block scales, or as FP32 numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/buffer.h"
#include "io/weight_source.h"
#include "megamoe/status.h"

namespace megamoe::io {

/// Keeps scratch memory for one matrix, and counts what it did.
class WeightReader {
 public:
  /// `codes` is [num_rows][num_cols], `scales` [ceil(num_rows / 128)][ceil(num_cols / 128)].
  Status read(const Source& source, const Extent& extent, uint8_t* codes, float* scales);

  /// `values` is [num_rows][num_cols]; of FP8 and MXFP4 the numbers that they stand for.
  Status read_floats(const Source& source, const Extent& extent, float* values);

  /// One sentence for each kind of weight that was read.
  void add_notes(std::vector<std::string>& notes) const;
  /// Whether any weight was rounded to E4M3 here.
  bool has_packed() const;

 private:
  Status read_elements(const Checkpoint::Tensor& tensor, const MatrixPart& part, uint64_t num_rows, uint64_t num_cols,
                       std::byte* elements);
  Status read_fp8(const Source& source, const Extent& extent, uint8_t* codes, float* scales);
  Status read_scales(const Source& source, const Extent& extent, float* scales);
  Status read_mxfp4(const Source& source, const Extent& extent, uint8_t* codes, float* scales);
  Status decode(const Source& source, const Extent& extent, float* values);

  Buffer<std::byte> span_;      ///< Bytes of a tensor from the first to the last element of a matrix.
  Buffer<std::byte> elements_;  ///< A matrix in the type of the file.
  Buffer<std::byte> exponents_;
  Buffer<float> floats_;
  std::array<uint64_t, 5> num_read_{};  ///< By WeightFormat.
  uint64_t num_converted_scales_ = 0;
  uint64_t num_flat_scales_ = 0;
  uint64_t num_rounded_ = 0;  ///< Weights of MXFP4 that E4M3 does not have.
};

}  // namespace megamoe::io
