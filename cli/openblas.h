// OpenBLAS as a yardstick: found at run time, so that the program neither needs nor ships it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "megamoe/status.h"

namespace megamoe::cli {

class OpenBlas {
 public:
  /// kNotSupported where the library is not installed. Sets OPENBLAS_CORETYPE before loading unless the user did: a
  /// release that is older than the CPU otherwise falls back to a core without AVX.
  static Result<OpenBlas> load();

  /// The core whose kernels are in use: "SkylakeX".
  const std::string& core() const { return core_; }
  void set_num_threads(uint32_t num_threads) const;

  /// c[rows][columns] = a[rows][depth] x b[columns][depth], transposed.
  void multiply(uint32_t num_rows, uint32_t num_columns, uint32_t depth, std::span<const float> a,
                std::span<const float> b, std::span<float> c) const;

 private:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                         int lda, const float* b, int ldb, float beta, float* c, int ldc);
  Sgemm sgemm_ = nullptr;
  void (*set_num_threads_)(int) = nullptr;
  std::string core_;
};

}  // namespace megamoe::cli
