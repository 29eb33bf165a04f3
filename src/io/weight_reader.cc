// Reads checked matrices: as E4M3 codes with block scales, or as FP32 numbers.
#include "io/weight_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "core/formats/ue8m0.h"
#include "io/half.h"
#include "io/mxfp4.h"
#include "io/pack_weights.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

Status grow(Buffer<std::byte>& buffer, uint64_t num_bytes) {
  if (buffer.size() >= num_bytes) return {};
  buffer = {};
  return allocate(buffer, num_bytes, "one matrix");
}

template <size_t kBytes>
void gather(const std::byte* span, const MatrixPart& part, uint64_t num_rows, uint64_t num_cols, std::byte* elements) {
  for (uint64_t row = 0; row < num_rows; ++row) {
    for (uint64_t col = 0; col < num_cols; ++col) {
      std::memcpy(elements + (row * num_cols + col) * kBytes,
                  span + (row * part.row_stride + col * part.col_stride) * kBytes, kBytes);
    }
  }
}

Status check_codes(const TensorInfo& info, const uint8_t* codes, const Extent& extent) {
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

float decode_scale(FileDType dtype, const std::byte* elements, uint64_t idx) {
  if (dtype == FileDType::kFloat32) return reinterpret_cast<const float*>(elements)[idx];
  if (dtype == FileDType::kBFloat16) return core::bf16_decode(reinterpret_cast<const uint16_t*>(elements)[idx]);
  return core::ue8m0_decode(static_cast<uint8_t>(elements[idx]));
}

}  // namespace

Status WeightReader::read(const Source& source, const Extent& extent, uint8_t* codes, float* scales) {
  ++num_read_[static_cast<size_t>(source.format)];
  const TensorInfo& weight = *source.weight.info;
  switch (source.format) {
    case WeightFormat::kFp8Blocks:
      return read_fp8(source, extent, codes, scales);
    case WeightFormat::kMxfp4:
      return read_mxfp4(source, extent, codes, scales);
    case WeightFormat::kBf16:
      MEGAMOE_RETURN_IF_ERROR(grow(elements_, extent.num_elements() * 2));
      MEGAMOE_RETURN_IF_ERROR(
          read_elements(source.weight, source.weight_part, extent.num_rows, extent.num_cols, elements_.data()));
      return pack_weights_bf16(reinterpret_cast<const uint16_t*>(elements_.data()), extent.num_rows, extent.num_cols,
                               codes, scales, weight.name);
    case WeightFormat::kF16:
    case WeightFormat::kF32:
      break;
  }
  if (floats_.size() < extent.num_elements()) {
    MEGAMOE_RETURN_IF_ERROR(allocate(floats_, extent.num_elements(), "one matrix in FP32"));
  }
  MEGAMOE_RETURN_IF_ERROR(decode(source, extent, floats_.data()));
  return pack_weights(floats_.data(), extent.num_rows, extent.num_cols, codes, scales, weight.name);
}

Status WeightReader::read_floats(const Source& source, const Extent& extent, float* values) {
  if (source.format != WeightFormat::kFp8Blocks && source.format != WeightFormat::kMxfp4) {
    ++num_read_[static_cast<size_t>(source.format)];
    return decode(source, extent, values);
  }
  Buffer<uint8_t> codes;
  Buffer<float> scales;
  MEGAMOE_RETURN_IF_ERROR(allocate(codes, extent.num_elements(), "one matrix"));
  MEGAMOE_RETURN_IF_ERROR(allocate(scales, extent.num_blocks(), "one matrix"));
  MEGAMOE_RETURN_IF_ERROR(read(source, extent, codes.data(), scales.data()));
  for (uint64_t row = 0; row < extent.num_rows; ++row) {
    for (uint64_t col = 0; col < extent.num_cols; ++col) {
      values[row * extent.num_cols + col] = core::e4m3_decode(codes[row * extent.num_cols + col]) *
                                            scales[row / kScaleGroup * extent.num_col_blocks() + col / kScaleGroup];
    }
  }
  return {};
}

void WeightReader::add_notes(std::vector<std::string>& notes) const {
  const auto add = [&](uint64_t count, std::string_view sentence) {
    if (count > 0) notes.push_back(fmt::format("{} {}", count, sentence));
  };
  const auto count = [&](WeightFormat format) { return num_read_[static_cast<size_t>(format)]; };
  add(count(WeightFormat::kFp8Blocks), "E4M3 weight tensors taken as they are");
  add(count(WeightFormat::kMxfp4), "MXFP4 weight tensors expanded to E4M3 here, one scale per 128 x 128 block");
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF16, WeightFormat::kF32}) {
    add(count(format),
        fmt::format("{} weight tensors packed to E4M3 here, one scale per 128 x 128 block", name(format)));
  }
  add(num_rounded_, "MXFP4 weights rounded, since the exponents of their block are more than 14 apart");
  add(num_converted_scales_, "scale tensors converted from BF16 or E8M0 to FP32, exactly");
  add(num_flat_scales_, "scale tensors stored in one dimension, read row by row");
}

bool WeightReader::has_packed() const {
  return num_read_[static_cast<size_t>(WeightFormat::kBf16)] + num_read_[static_cast<size_t>(WeightFormat::kF16)] +
             num_read_[static_cast<size_t>(WeightFormat::kF32)] >
         0;
}

Status WeightReader::read_elements(const Checkpoint::Tensor& tensor, const MatrixPart& part, uint64_t num_rows,
                                   uint64_t num_cols, std::byte* elements) {
  const uint64_t bytes = element_bytes(tensor.info->dtype);
  if (part.col_stride == 1 && part.row_stride == num_cols) {
    return tensor.file->read_part(*tensor.info, part.first * bytes, std::span(elements, num_rows * num_cols * bytes));
  }
  const uint64_t span_elements = (num_rows - 1) * part.row_stride + (num_cols - 1) * part.col_stride + 1;
  MEGAMOE_RETURN_IF_ERROR(grow(span_, span_elements * bytes));
  MEGAMOE_RETURN_IF_ERROR(
      tensor.file->read_part(*tensor.info, part.first * bytes, span_.span().first(span_elements * bytes)));
  if (bytes == 1) gather<1>(span_.data(), part, num_rows, num_cols, elements);
  if (bytes == 2) gather<2>(span_.data(), part, num_rows, num_cols, elements);
  if (bytes == 4) gather<4>(span_.data(), part, num_rows, num_cols, elements);
  return {};
}

Status WeightReader::read_fp8(const Source& source, const Extent& extent, uint8_t* codes, float* scales) {
  MEGAMOE_RETURN_IF_ERROR(read_elements(source.weight, source.weight_part, extent.num_rows, extent.num_cols,
                                        reinterpret_cast<std::byte*>(codes)));
  MEGAMOE_RETURN_IF_ERROR(check_codes(*source.weight.info, codes, extent));
  return read_scales(source, extent, scales);
}

Status WeightReader::read_scales(const Source& source, const Extent& extent, float* scales) {
  const TensorInfo& info = *source.scale.info;
  MEGAMOE_RETURN_IF_ERROR(grow(elements_, extent.num_blocks() * element_bytes(info.dtype)));
  MEGAMOE_RETURN_IF_ERROR(read_elements(source.scale, source.scale_part, extent.num_row_blocks(),
                                        extent.num_col_blocks(), elements_.data()));
  if (info.shape.size() < 2) ++num_flat_scales_;
  if (info.dtype != FileDType::kFloat32) ++num_converted_scales_;
  for (uint64_t idx = 0; idx < extent.num_blocks(); ++idx) {
    scales[idx] = decode_scale(info.dtype, elements_.data(), idx);
    if (!std::isfinite(scales[idx]) || scales[idx] < 0) {
      return {Code::kBadFile, fmt::format("moe_weights.load: every scale must be finite and not negative, tensor "
                                          "\"{}\" has {} at index {}",
                                          printable(info.name), scales[idx], source.scale_part.first + idx)};
    }
  }
  return {};
}

Status WeightReader::read_mxfp4(const Source& source, const Extent& extent, uint8_t* codes, float* scales) {
  const uint64_t runs = extent.num_cols / kMxfp4Run;
  MEGAMOE_RETURN_IF_ERROR(grow(elements_, extent.num_elements() / 2));
  MEGAMOE_RETURN_IF_ERROR(grow(exponents_, extent.num_rows * runs));
  MEGAMOE_RETURN_IF_ERROR(
      read_elements(source.weight, source.weight_part, extent.num_rows, extent.num_cols / 2, elements_.data()));
  MEGAMOE_RETURN_IF_ERROR(read_elements(source.scale, source.scale_part, extent.num_rows, runs, exponents_.data()));
  return expand_mxfp4(reinterpret_cast<const uint8_t*>(elements_.data()),
                      reinterpret_cast<const uint8_t*>(exponents_.data()), extent.num_rows, extent.num_cols, codes,
                      scales, num_rounded_, source.scale.info->name);
}

Status WeightReader::decode(const Source& source, const Extent& extent, float* values) {
  const uint64_t count = extent.num_elements();
  if (source.format == WeightFormat::kF32) {
    return read_elements(source.weight, source.weight_part, extent.num_rows, extent.num_cols,
                         reinterpret_cast<std::byte*>(values));
  }
  MEGAMOE_RETURN_IF_ERROR(grow(elements_, count * 2));
  MEGAMOE_RETURN_IF_ERROR(
      read_elements(source.weight, source.weight_part, extent.num_rows, extent.num_cols, elements_.data()));
  const auto* halves = reinterpret_cast<const uint16_t*>(elements_.data());
  std::transform(halves, halves + count, values, source.format == WeightFormat::kF16 ? half_decode : core::bf16_decode);
  return {};
}

}  // namespace megamoe::io
