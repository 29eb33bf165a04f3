// The few driver functions in use, found at run time.
#include "backends/sm90/driver.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

namespace megamoe::sm90 {

namespace {

/// Null where the driver does not offer it.
template <class Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned int kVersion = 12000;
  if (cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    found = nullptr;
  return reinterpret_cast<Function>(found);
}

/// The GPU's primary context, which the runtime uses too; kept for good once it was asked for. Null on failure.
CUcontext primary_context(int device) {
  static const auto retain = driver_function<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  static std::mutex mutex;
  static std::map<int, CUcontext> contexts;
  const std::lock_guard lock(mutex);
  CUcontext& context = contexts[device];
  if (context == nullptr && (retain == nullptr || retain(&context, device) != CUDA_SUCCESS)) context = nullptr;
  return context;
}

}  // namespace

EncodeTiled encode_tiled() {
  static const auto function = driver_function<EncodeTiled>("cuTensorMapEncodeTiled");
  return function;
}

CurrentDevice::CurrentDevice(int device) {
  static const auto push = driver_function<decltype(&cuCtxPushCurrent)>("cuCtxPushCurrent");
  int now = -1;
  if (cudaGetDevice(&now) == cudaSuccess && now == device) return;
  const CUcontext context = primary_context(device);
  is_pushed_ = push != nullptr && context != nullptr && push(context) == CUDA_SUCCESS;
  if (!is_pushed_) cudaSetDevice(device);  // Whose error the next call reports.
}

CurrentDevice::~CurrentDevice() {
  static const auto pop = driver_function<decltype(&cuCtxPopCurrent)>("cuCtxPopCurrent");
  CUcontext own = nullptr;
  if (is_pushed_) pop(&own);
}

Status cuda_status(cudaError_t error, std::string_view where, std::string_view what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // the next call must not report this one again
  const Code code = error == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kInternal;
  return {code, fmt::format("{}: {} must succeed, got {} ({}); see the CUDA error's own text", where, what,
                            cudaGetErrorName(error), cudaGetErrorString(error))};
}

}  // namespace megamoe::sm90
