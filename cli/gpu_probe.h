// The GPUs of this machine as the driver tells them, found at run time so that the program starts without one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megamoe::cli {

struct Gpu {
  std::string name;
  std::string uuid;  ///< "GPU-xxxxxxxx-...".
  uint32_t compute_major = 0, compute_minor = 0;
  uint32_t num_sms = 0;
  uint64_t memory_bytes = 0;
};

struct GpuReport {
  std::string problem;  ///< Why there is nothing to report; empty where the driver answered.
  std::string driver;   ///< The CUDA version the driver supports, "13.0".
  std::vector<Gpu> gpus;
  std::vector<std::vector<bool>> peer_access;  ///< [from][to].
};

/// Creates no context and changes nothing.
GpuReport probe_gpus();

}  // namespace megamoe::cli
