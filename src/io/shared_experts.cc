// Shared experts, cut into experts of the routed experts' size.
#include <fmt/format.h>

#include <algorithm>

#include "core/formats/e4m3.h"
#include "io/block_tensors.h"
#include "io/moe_checkpoint.h"
#include "io/pack_weights.h"
#include "io/weight_reader.h"

namespace megamoe::io {
namespace {

/// A whole projection, either as codes and scales or as numbers.
struct Whole {
  Extent extent;
  Buffer<uint8_t> codes;
  Buffer<float> scales;
  Buffer<float> values;  ///< Empty where codes and scales are taken as they are.
};

/// Cuts one projection along the intermediate dimension.
class Cutter {
 public:
  Cutter(const Whole& whole, bool down, uint64_t piece_intermediate)
      : whole_(whole),
        down_(down),
        piece_(down ? Extent{whole.extent.num_rows, piece_intermediate}
                    : Extent{piece_intermediate, whole.extent.num_cols}) {}

  /// Piece `idx`, padded with zeros, in E4M3.
  Status cut(uint64_t idx, uint8_t* codes, float* scales, std::string_view tensor_name) {
    if (whole_.values.empty()) {
      cut_codes(idx, codes, scales);
      return {};
    }
    MEGAMOE_RETURN_IF_ERROR(allocate(values_, piece_.num_elements(), "a shared expert"));
    copy(whole_.values.data(), whole_.extent.num_rows, whole_.extent.num_cols, first_row(idx), first_col(idx),
         piece_.num_rows, piece_.num_cols, 0.0f, values_.data());
    return pack_weights(values_.data(), piece_.num_rows, piece_.num_cols, codes, scales, tensor_name);
  }

 private:
  uint64_t first_row(uint64_t idx) const { return down_ ? 0 : idx * piece_.num_rows; }
  uint64_t first_col(uint64_t idx) const { return down_ ? idx * piece_.num_cols : 0; }

  /// The window of a matrix at (row, col); what lies outside of the matrix becomes `padding`.
  template <class T>
  static void copy(const T* from, uint64_t from_rows, uint64_t from_cols, uint64_t row, uint64_t col, uint64_t num_rows,
                   uint64_t num_cols, T padding, T* to) {
    for (uint64_t r = 0; r < num_rows; ++r) {
      for (uint64_t c = 0; c < num_cols; ++c) {
        const bool inside = row + r < from_rows && col + c < from_cols;
        to[r * num_cols + c] = inside ? from[(row + r) * from_cols + col + c] : padding;
      }
    }
  }

  void cut_codes(uint64_t idx, uint8_t* codes, float* scales) const {
    copy(whole_.codes.data(), whole_.extent.num_rows, whole_.extent.num_cols, first_row(idx), first_col(idx),
         piece_.num_rows, piece_.num_cols, uint8_t{0}, codes);
    copy(whole_.scales.data(), whole_.extent.num_row_blocks(), whole_.extent.num_col_blocks(),
         first_row(idx) / kScaleGroup, first_col(idx) / kScaleGroup, piece_.num_row_blocks(), piece_.num_col_blocks(),
         1.0f, scales);
  }

  const Whole& whole_;
  bool down_;
  Extent piece_;
  Buffer<float> values_;
};

/// Codes and scales where the file's blocks are those of the pieces, else numbers to be packed.
Status read_whole(WeightReader& reader, const Source& source, const Extent& extent, bool cuts_between_blocks,
                  Whole& whole) {
  whole.extent = extent;
  const bool has_codes = source.format == WeightFormat::kFp8Blocks || source.format == WeightFormat::kMxfp4;
  if (has_codes && cuts_between_blocks) {
    MEGAMOE_RETURN_IF_ERROR(allocate(whole.codes, extent.num_elements(), "shared experts"));
    MEGAMOE_RETURN_IF_ERROR(allocate(whole.scales, extent.num_blocks(), "scales of shared experts"));
    return reader.read(source, extent, whole.codes.data(), whole.scales.data());
  }
  MEGAMOE_RETURN_IF_ERROR(allocate(whole.values, extent.num_elements(), "shared experts in FP32"));
  return reader.read_floats(source, extent, whole.values.data());
}

Status read_shared(const SharedTensors& tensors, const MoeShape& shape, SharedExperts& shared) {
  const uint64_t count = shared.num_experts;
  const Extent gate = extent_of(shape.hidden, shape.intermediate, Projection::kGate);
  const Extent down = extent_of(shape.hidden, shape.intermediate, Projection::kDown);
  MEGAMOE_RETURN_IF_ERROR(allocate(shared.w13, count * 2 * gate.num_elements(), "w13 of shared experts"));
  MEGAMOE_RETURN_IF_ERROR(allocate(shared.w13_scale, count * 2 * gate.num_blocks(), "w13_scale of shared experts"));
  MEGAMOE_RETURN_IF_ERROR(allocate(shared.w2, count * down.num_elements(), "w2 of shared experts"));
  MEGAMOE_RETURN_IF_ERROR(allocate(shared.w2_scale, count * down.num_blocks(), "w2_scale of shared experts"));
  const bool cuts_between_blocks = count == 1 || shape.intermediate % kScaleGroup == 0;
  WeightReader reader;
  bool packed_again = false;
  for (size_t idx = 0; idx < kNumProjections; ++idx) {
    const auto which = static_cast<Projection>(idx);
    const Source& source = tensors.sources[idx];
    Whole whole;
    MEGAMOE_RETURN_IF_ERROR(
        read_whole(reader, source, extent_of(shape.hidden, shared.intermediate, which), cuts_between_blocks, whole));
    packed_again |=
        !whole.values.empty() && (source.format == WeightFormat::kFp8Blocks || source.format == WeightFormat::kMxfp4);
    const bool is_down = which == Projection::kDown;
    Cutter cutter(whole, is_down, shape.intermediate);
    for (uint64_t piece = 0; piece < count; ++piece) {
      const uint64_t place = piece * 2 + (which == Projection::kUp ? 1 : 0);
      uint8_t* const codes =
          is_down ? shared.w2.data() + piece * down.num_elements() : shared.w13.data() + place * gate.num_elements();
      float* const scales = is_down ? shared.w2_scale.data() + piece * down.num_blocks()
                                    : shared.w13_scale.data() + place * gate.num_blocks();
      MEGAMOE_RETURN_IF_ERROR(cutter.cut(piece, codes, scales, source.weight.info->name));
    }
  }
  shared.packed_here = reader.has_packed() || packed_again;
  const std::string_view stored = name(tensors.sources.front().format);
  const std::string done = packed_again          ? ", packed to E4M3 again since the cuts lie inside blocks"
                           : reader.has_packed() ? fmt::format(", {} packed to E4M3", stored)
                                                 : fmt::format(", {} as it is", stored);
  shared.notes.push_back(fmt::format("shared experts of intermediate {} as {} of {}{}", shared.intermediate, count,
                                     shape.intermediate, done));
  return {};
}

}  // namespace

Result<SharedExperts> MoeCheckpoint::load_shared_experts(uint32_t layer) const {
  const Result<SharedTensors> tensors =
      find_shared_experts(checkpoint_, config_, names_, layer, where("shared_experts.load"));
  if (!tensors.ok()) return tensors.status();
  SharedExperts shared;
  shared.intermediate = tensors->intermediate;
  shared.num_experts =
      static_cast<uint32_t>(core::ceil_div<uint64_t>(tensors->intermediate, config_.shape.intermediate));
  if (shared.num_experts == 0) return shared;
  MEGAMOE_RETURN_IF_ERROR(read_shared(tensors.value(), config_.shape, shared));
  if (tensors->gate.info != nullptr) MEGAMOE_RETURN_IF_ERROR(read_floats(tensors->gate, shared.gate));
  return shared;
}

}  // namespace megamoe::io
