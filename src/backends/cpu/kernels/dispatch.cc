// The public kernel functions: they pick the SIMD level in use and fix the floating-point state around it.
#include <array>
#include <atomic>
#include <cassert>
#include <string>

#include "backends/cpu/kernels/cpu_features.h"
#include "backends/cpu/kernels/fp_state.h"
#include "backends/cpu/kernels/kernel_table.h"
#include "backends/cpu/kernels/kernels.h"

namespace megamoe::cpu {
namespace {

struct LevelKernels {
  std::string_view name;
  SimdLevel level;
  GemmKernel gemm;
  RowKernels rows;
};

constexpr size_t kNumLevels = 4;

/// Slowest first.
const std::array<LevelKernels, kNumLevels>& all_levels() {
  static const std::array<LevelKernels, kNumLevels> kLevels = [] {
    std::array<LevelKernels, kNumLevels> table{{
        {"scalar", SimdLevel::kScalar, nullptr, {}},
        {"sse4", SimdLevel::kSse4, nullptr, {}},
        {"avx2", SimdLevel::kAvx2, nullptr, {}},
        {"avx512", SimdLevel::kAvx512, nullptr, {}},
    }};
    for (LevelKernels& entry : table) {
      entry.gemm = gemm_kernel(entry.level);
      entry.rows = row_kernels(entry.level);
    }
    return table;
  }();
  return kLevels;
}

bool is_usable(const LevelKernels& entry) { return entry.gemm != nullptr && cpu_supports(entry.level); }

const LevelKernels* fastest_level() {
  const LevelKernels* fastest = nullptr;
  for (const LevelKernels& entry : all_levels()) {
    if (is_usable(entry)) fastest = &entry;
  }
  return fastest;
}

std::atomic<const LevelKernels*>& chosen_level() {
  static std::atomic<const LevelKernels*> chosen{fastest_level()};
  return chosen;
}

const LevelKernels& current() { return *chosen_level().load(std::memory_order_acquire); }

std::string usable_names() {
  std::string names = "auto";
  for (const std::string_view name : usable_simd_levels()) names.append(", ").append(name);
  return names;
}

}  // namespace

std::string_view simd_level() { return current().name; }

std::vector<std::string_view> usable_simd_levels() {
  std::vector<std::string_view> names;
  for (const LevelKernels& entry : all_levels()) {
    if (is_usable(entry)) names.push_back(entry.name);
  }
  return names;
}

Status set_simd_level(std::string_view level) {
  if (level == "auto") {
    chosen_level().store(fastest_level(), std::memory_order_release);
    return {};
  }
  for (const LevelKernels& entry : all_levels()) {
    if (entry.name != level) continue;
    if (!is_usable(entry)) {
      return Status(Code::kNotSupported,
                    "cpu.set_simd_level: the SIMD level must be one this CPU and build can run, got " +
                        std::string(level) + "; use one of " + usable_names());
    }
    chosen_level().store(&entry, std::memory_order_release);
    return {};
  }
  return Status(Code::kInvalidArgument, "cpu.set_simd_level: the SIMD level must be a known name, got \"" +
                                            std::string(level) + "\"; use one of " + usable_names());
}

void quantize_rows_bf16(const uint16_t* x, int64_t x_row_stride, int64_t num_rows, int64_t hidden, uint8_t* codes,
                        int64_t codes_row_stride, float* scales, int64_t scales_row_stride) {
  assert(hidden % kScaleGroup == 0);
  const DefaultFpState fp_state;
  current().rows.quantize_rows_bf16(x, x_row_stride, num_rows, hidden, codes, codes_row_stride, scales,
                                    scales_row_stride);
}

void gemm_fp8_block(const GemmBlock& block) {
  assert(block.num_rows >= 1 && block.num_rows <= kMaxGemmRows);
  assert(block.num_columns >= 1 && block.num_columns <= kMaxGemmColumns);
  assert(block.k >= 64 && block.k % 64 == 0);
  assert(block.scratch != nullptr && reinterpret_cast<uintptr_t>(block.scratch) % kScratchAlignment == 0);
  const DefaultFpState fp_state;
  current().gemm(block);
}

void swiglu_quantize_rows(const SwigluBlock& block) {
  assert(block.width == 64 || block.width == 128);
  assert(block.clamp > 0.0f);
  const DefaultFpState fp_state;
  current().rows.swiglu_quantize_rows(block);
}

void exp_row(const float* x, int64_t count, float* y) {
  const DefaultFpState fp_state;
  current().rows.exp_row(x, count, y);
}

void float_rows_to_bf16(const float* x, int64_t x_row_stride, int64_t num_rows, int64_t num_columns, uint16_t* out,
                        int64_t out_row_stride) {
  const DefaultFpState fp_state;
  current().rows.float_rows_to_bf16(x, x_row_stride, num_rows, num_columns, out, out_row_stride);
}

void combine_rows(const uint16_t* const* rows, int64_t num_rows, int64_t hidden, uint16_t* out) {
  const DefaultFpState fp_state;
  current().rows.combine_rows(rows, num_rows, hidden, out);
}

}  // namespace megamoe::cpu
