// BF16 or FP32 weights to E4M3 codes with one FP32 scale per 128 x 128 block.
#include "io/pack_weights.h"

#include <fmt/format.h>

#include <cfenv>
#include <cmath>

#include "core/formats/bf16.h"
#include "core/integer.h"
#include "core/quantize.h"
#include "io/text.h"
#include "megamoe/shape.h"

namespace megamoe::io {
namespace {

/// The default floating-point state while it lives: rounding to nearest, subnormal numbers kept.
class DefaultFloatState {
 public:
  DefaultFloatState() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatState() { std::fesetenv(&saved_); }
  DefaultFloatState(const DefaultFloatState&) = delete;
  DefaultFloatState& operator=(const DefaultFloatState&) = delete;

 private:
  std::fenv_t saved_{};
};

template <class Element, class Decode>
Status pack(const Element* weights, uint64_t num_rows, uint64_t num_cols, uint8_t* codes, float* scales,
            std::string_view tensor_name, Decode decode) {
  const DefaultFloatState float_state;
  const uint64_t num_col_blocks = core::ceil_div<uint64_t>(num_cols, kScaleGroup);
  for (uint64_t row_begin = 0; row_begin < num_rows; row_begin += kScaleGroup) {
    const uint64_t row_end = core::min<uint64_t>(row_begin + kScaleGroup, num_rows);
    for (uint64_t col_begin = 0; col_begin < num_cols; col_begin += kScaleGroup) {
      const uint64_t col_end = core::min<uint64_t>(col_begin + kScaleGroup, num_cols);
      float amax = 0.0f;
      for (uint64_t row = row_begin; row < row_end; ++row) {
        for (uint64_t col = col_begin; col < col_end; ++col) {
          const float weight = decode(weights[row * num_cols + col]);
          if (!std::isfinite(weight)) {
            return {
                Code::kBadFile,
                fmt::format("weights.pack: every weight must be finite to have an E4M3 code, tensor \"{}\" has {} at "
                            "row {}, column {}",
                            printable(tensor_name), weight, row, col)};
          }
          amax = core::amax_update(amax, weight);
        }
      }
      const float scale = core::group_scale(amax);
      const float inverse = core::group_inverse(scale);
      scales[row_begin / kScaleGroup * num_col_blocks + col_begin / kScaleGroup] = scale;
      for (uint64_t row = row_begin; row < row_end; ++row) {
        for (uint64_t col = col_begin; col < col_end; ++col) {
          codes[row * num_cols + col] = core::quantize_code(decode(weights[row * num_cols + col]), inverse);
        }
      }
    }
  }
  return {};
}

}  // namespace

Status pack_weights(const float* weights, uint64_t num_rows, uint64_t num_cols, uint8_t* codes, float* scales,
                    std::string_view tensor_name) {
  return pack(weights, num_rows, num_cols, codes, scales, tensor_name, [](float weight) { return weight; });
}

Status pack_weights_bf16(const uint16_t* weights, uint64_t num_rows, uint64_t num_cols, uint8_t* codes, float* scales,
                         std::string_view tensor_name) {
  return pack(weights, num_rows, num_cols, codes, scales, tensor_name, core::bf16_decode);
}

}  // namespace megamoe::io
