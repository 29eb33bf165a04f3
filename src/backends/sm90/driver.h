// The few driver functions in use, found at run time, so that a program that links this backend starts without a
// driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string_view>

#include "megamoe/status.h"

namespace megamoe::sm90 {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// Null where there is no driver, or one that is too old.
EncodeTiled encode_tiled();

/// A CUDA error as a status: "where: what failed: CUDA's name and sentence".
Status cuda_status(cudaError_t error, std::string_view where, std::string_view what);

/// Makes a GPU the calling thread's current one for a while. Unlike cudaSetDevice there and back, it leaves alone a GPU
/// that this process has not used: that call would create a context on it.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  bool is_pushed_ = false;
};

}  // namespace megamoe::sm90

/// Returns from the enclosing function when a CUDA call fails.
#define MEGAMOE_RETURN_IF_CUDA_ERROR(call, where) \
  MEGAMOE_RETURN_IF_ERROR(::megamoe::sm90::cuda_status((call), where, #call))
