// The arithmetic of the CPU backend: quantise, multiply, activate, combine. One implementation per SIMD level behind
// one table, no threads, no allocation inside a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "megamoe/status.h"

namespace megamoe::cpu {

// Every function here runs in the default floating-point state (round to nearest even, no flush to zero) whatever the
// caller's MXCSR says, and gives the caller's back. Results carry the same bits on every SIMD level, for any number of
// rows or columns in a call. All strides count elements of the pointer's type. Pointers need only their type's
// alignment.

/// Columns that share one activation scale, and the depth of a K block.
inline constexpr int64_t kScaleGroup = 128;
/// The most rows and output columns of one `gemm_fp8_block` call.
inline constexpr int64_t kMaxGemmRows = 256;
inline constexpr int64_t kMaxGemmColumns = 128;
/// The alignment of `GemmBlock::scratch`, in bytes.
inline constexpr size_t kScratchAlignment = 64;

/// The SIMD level in use: "scalar", "sse4", "avx2" or "avx512".
std::string_view simd_level();

/// The levels this CPU can run, slowest first; "scalar" is always among them.
std::vector<std::string_view> usable_simd_levels();

/// Chooses the level of all later calls: one of `usable_simd_levels()`, or "auto" for the fastest. Call it while no
/// kernel runs. Errors: kNotSupported for a level this CPU lacks, kInvalidArgument for an unknown name.
Status set_simd_level(std::string_view level);

/// BF16 rows to E4M3 codes with one scale per 128 columns.
/// x: [num_rows][hidden]; codes: [num_rows][hidden]; scales: [num_rows][hidden / 128]. hidden is a multiple of 128.
void quantize_rows_bf16(const uint16_t* x, int64_t x_row_stride, int64_t num_rows, int64_t hidden, uint8_t* codes,
                        int64_t codes_row_stride, float* scales, int64_t scales_row_stride);

/// One block of sums[m][n] = sum over K blocks of (codes of row m . codes of column n) * scale_a * scale_b.
struct GemmBlock {
  const uint8_t* a_codes = nullptr;  ///< [num_rows][k] E4M3 activations.
  int64_t a_row_stride = 0;
  const float* a_scales = nullptr;  ///< [num_rows][ceil(k / 128)], element (row, group) at the two strides below.
  int64_t a_scale_row_stride = 0;
  int64_t a_scale_group_stride = 1;

  const uint8_t* b_codes = nullptr;  ///< [num_columns][k] E4M3 weights, one weight row per output column.
  int64_t b_row_stride = 0;
  const float* b_scales = nullptr;  ///< [ceil(k / 128)]: the scales of the 128-row weight block these columns lie in.
  int64_t b_scale_group_stride = 1;

  int64_t num_rows = 0;     ///< 1 to kMaxGemmRows.
  int64_t num_columns = 0;  ///< 1 to kMaxGemmColumns.
  int64_t k = 0;            ///< A multiple of 64; the last K block is 64 deep when k % 128 == 64.

  float* sums = nullptr;  ///< [num_rows][num_columns], written (not added to).
  int64_t sums_row_stride = 0;

  void* scratch = nullptr;  ///< gemm_scratch_bytes(num_rows) bytes, aligned to kScratchAlignment; contents are free.
};

/// The scratch bytes a `gemm_fp8_block` call with up to `max_rows` rows needs, on any SIMD level.
size_t gemm_scratch_bytes(int64_t max_rows);

/// Fills `block.sums`. Per 128-deep K block, ascending: part = FP32 sum of the code products in ascending k, then
/// sum = fmaf(part, scale_a * scale_b, sum).
void gemm_fp8_block(const GemmBlock& block);

/// One 128-column group of the activation: h = (silu(min(gate, clamp)) * min(max(up, -clamp), clamp)) * weight per row,
/// requantised to E4M3 with one scale per row.
struct SwigluBlock {
  const float* gate = nullptr;  ///< [num_rows][width]
  int64_t gate_row_stride = 0;
  const float* up = nullptr;  ///< [num_rows][width]
  int64_t up_row_stride = 0;
  const float* row_weights = nullptr;  ///< [num_rows] top-k weights.
  float clamp = 0;                     ///< Positive; +infinity for none.
  int64_t num_rows = 0;
  int64_t width = 0;  ///< 64 or 128 columns.

  uint8_t* codes = nullptr;  ///< [num_rows][width]
  int64_t codes_row_stride = 0;
  float* scales = nullptr;  ///< [num_rows], one per row at this stride.
  int64_t scales_row_stride = 1;
};

void swiglu_quantize_rows(const SwigluBlock& block);

/// y[i] = exp(x[i]) as the activation computes it: at most 2 ulp from the exact value, +infinity on overflow, gradual
/// underflow, NaN for NaN.
void exp_row(const float* x, int64_t count, float* y);

/// FP32 rows [num_rows][num_columns] to BF16, round to nearest even; NaN becomes 0x7fc0.
void float_rows_to_bf16(const float* x, int64_t x_row_stride, int64_t num_rows, int64_t num_columns, uint16_t* out,
                        int64_t out_row_stride);

/// out[h] = BF16(((+0 + rows[0][h]) + rows[1][h]) + ...) in FP32, rounded once. rows: `num_rows` pointers to BF16
/// [hidden], in slot order (masked slots left out by the caller); 0 rows give +0.
void combine_rows(const uint16_t* const* rows, int64_t num_rows, int64_t hidden, uint16_t* out);

}  // namespace megamoe::cpu
