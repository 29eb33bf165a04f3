// The few driver functions in use, found at run time.
#include "backends/sm90/driver.h"

#include <fmt/format.h>

namespace megamoe::sm90 {

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr unsigned int kVersion = 12000;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kVersion, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
      found = nullptr;
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

Status cuda_status(cudaError_t error, std::string_view where, std::string_view what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // the next call must not report this one again
  const Code code = error == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kInternal;
  return {code, fmt::format("{}: {} must succeed, got {} ({}); see the CUDA error's own text", where, what,
                            cudaGetErrorName(error), cudaGetErrorString(error))};
}

}  // namespace megamoe::sm90
