// Operands of random codes, and the tiles of one GEMM shared by threads as the CPU backend shares them.
#include "api/gemm_rate.h"

#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <new>
#include <random>
#include <thread>

#include "backends/cpu/kernels/kernels.h"

namespace megamoe::api {
namespace {

constexpr std::align_val_t kScratchAlignment{cpu::kScratchAlignment};

struct FreeScratch {
  void operator()(void* memory) const { ::operator delete(memory, kScratchAlignment); }
};

/// The value of every code; the two NaN codes are never drawn.
std::array<float, 256> code_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int fraction = code & 7;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                          : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    values[static_cast<size_t>(code)] = (code & 0x80) != 0 ? -magnitude : magnitude;
  }
  return values;
}

}  // namespace

GemmRate::Operand GemmRate::make_operand(uint64_t num_rows, uint64_t depth, uint64_t scale_rows, uint64_t seed) {
  static const std::array<float, 256> kValues = code_values();
  constexpr uint64_t kGroup = cpu::kScaleGroup;
  const uint64_t groups = depth / kGroup;
  std::mt19937_64 random(seed);
  Operand operand;
  operand.codes.resize(num_rows * depth);
  operand.values.resize(num_rows * depth);
  operand.scales.resize((num_rows + scale_rows - 1) / scale_rows * groups);
  for (float& scale : operand.scales) scale = 1e-3F * static_cast<float>(1 + random() % 8);
  for (uint64_t row = 0; row < num_rows; ++row) {
    for (uint64_t group = 0; group < groups; ++group) {
      const float scale = operand.scales[row / scale_rows * groups + group];
      for (uint64_t i = 0; i < kGroup; ++i) {
        const uint64_t at = row * depth + group * kGroup + i;
        // Only the upper half of a code's magnitudes: nothing is lost in the sum, so a wrong column would be seen.
        const auto code = static_cast<uint8_t>((random() >> 24 & 0x80) | (0x38 + (random() >> 32) % 0x30));
        operand.codes[at] = code;
        operand.values[at] = kValues[code] * scale;
      }
    }
  }
  return operand;
}

GemmRate::GemmRate(const GemmShape& shape)
    : shape_(shape),
      activations_(make_operand(shape.num_rows, shape.depth, 1, 1)),
      weights_(make_operand(shape.num_columns, shape.depth, cpu::kScaleGroup, 2)),
      sums_(uint64_t{shape.num_rows} * shape.num_columns) {}

void GemmRate::run_columns(uint32_t first_column, void* scratch) {
  const int64_t depth = shape_.depth;
  const int64_t groups = depth / cpu::kScaleGroup;
  cpu::GemmBlock block;
  block.a_codes = activations_.codes.data();
  block.a_row_stride = depth;
  block.a_scales = activations_.scales.data();
  block.a_scale_row_stride = groups;
  block.b_codes = weights_.codes.data() + first_column * depth;
  block.b_row_stride = depth;
  block.b_scales = weights_.scales.data() + first_column / cpu::kScaleGroup * groups;
  block.num_rows = shape_.num_rows;
  block.num_columns = cpu::kMaxGemmColumns;
  block.k = depth;
  block.sums = sums_.data() + first_column;
  block.sums_row_stride = shape_.num_columns;
  block.scratch = scratch;
  cpu::gemm_fp8_block(block);
}

void GemmRate::run(uint32_t num_threads) {
  constexpr auto kStep = static_cast<uint32_t>(cpu::kMaxGemmColumns);
  std::atomic<uint32_t> next{0};
  const auto work = [&] {
    const std::unique_ptr<void, FreeScratch> scratch(
        ::operator new(cpu::gemm_scratch_bytes(shape_.num_rows), kScratchAlignment));
    for (uint32_t column = next.fetch_add(kStep); column < shape_.num_columns; column = next.fetch_add(kStep)) {
      run_columns(column, scratch.get());
    }
  };
  std::vector<std::jthread> threads;
  for (uint32_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
}

}  // namespace megamoe::api
