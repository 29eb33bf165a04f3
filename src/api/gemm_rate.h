// One GEMM of the CPU backend by itself, on operands that programs above the library can also read as FP32: to time it
// beside another library's and to see that both computed the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megamoe::api {

/// sums[rows][columns] = activations[rows][depth] x weights[columns][depth], transposed.
struct GemmShape {
  uint32_t num_rows = 0;     ///< 1 to 256: the rows that share a pass over the weights.
  uint32_t num_columns = 0;  ///< A multiple of 128.
  uint32_t depth = 0;        ///< A multiple of 128.
};

/// Seeded E4M3 operands with scales, and the same numbers in FP32.
class GemmRate {
 public:
  explicit GemmRate(const GemmShape& shape);

  /// Computes all sums on `num_threads` threads, at the SIMD level in force.
  void run(uint32_t num_threads);

  const GemmShape& shape() const { return shape_; }
  std::span<const float> activations() const { return activations_.values; }
  std::span<const float> weights() const { return weights_.values; }
  std::span<const float> sums() const { return sums_; }

 private:
  struct Operand {
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    std::vector<float> values;
  };

  static Operand make_operand(uint64_t num_rows, uint64_t depth, uint64_t scale_rows, uint64_t seed);
  void run_columns(uint32_t first_column, void* scratch);

  GemmShape shape_;
  Operand activations_;
  Operand weights_;
  std::vector<float> sums_;
};

}  // namespace megamoe::api
