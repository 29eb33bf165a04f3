// Loading the library and three of its functions.
#include "cli/openblas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <tuple>

#include "api/machine.h"

namespace megamoe::cli {
namespace {

// Values of the CBLAS interface.
constexpr int kRowMajor = 101;
constexpr int kNotTransposed = 111;
constexpr int kTransposed = 112;

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

void choose_core() {
  const std::string_view widest = api::usable_simd_levels().back();
  const char* const core = widest == "avx512" ? "SkylakeX" : (widest == "avx2" ? "Haswell" : nullptr);
  constexpr int kKeep = 0;
  if (core != nullptr) setenv("OPENBLAS_CORETYPE", core, kKeep);
  // Its threads wait for the next call by spinning, 2^N ticks long: a short wait leaves the cores to the other side.
  setenv("OPENBLAS_THREAD_TIMEOUT", "20", kKeep);
}

}  // namespace

Result<OpenBlas> OpenBlas::load() {
  choose_core();
  void* const library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);  // Never unloaded: it owns threads.
  if (library == nullptr) {
    return Status(Code::kNotSupported, "OpenBLAS is not installed (apt-get install libopenblas0-pthread)");
  }
  OpenBlas blas;
  char* (*corename)() = nullptr;
  if (!find(library, "cblas_sgemm", blas.sgemm_) || !find(library, "openblas_set_num_threads", blas.set_num_threads_) ||
      !find(library, "openblas_get_corename", corename)) {
    return Status(
        Code::kNotSupported,
        fmt::format("libopenblas.so.0 has no CBLAS interface ({}); apt-get install libopenblas0-pthread", dlerror()));
  }
  blas.core_ = corename();
  return blas;
}

void OpenBlas::set_num_threads(uint32_t num_threads) const { set_num_threads_(static_cast<int>(num_threads)); }

void OpenBlas::multiply(uint32_t num_rows, uint32_t num_columns, uint32_t depth, std::span<const float> a,
                        std::span<const float> b, std::span<float> c) const {
  const auto [m, n, k] = std::tuple(static_cast<int>(num_rows), static_cast<int>(num_columns), static_cast<int>(depth));
  sgemm_(kRowMajor, kNotTransposed, kTransposed, m, n, k, 1.0F, a.data(), k, b.data(), k, 0.0F, c.data(), n);
}

}  // namespace megamoe::cli
