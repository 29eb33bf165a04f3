// Hands on what the CPU backend knows about this machine.
#include "api/machine.h"

#include "api/registry.h"
#include "backends/cpu/kernels/kernels.h"

namespace megamoe::api {

std::string_view simd_level() { return cpu::simd_level(); }

std::vector<std::string_view> usable_simd_levels() { return cpu::usable_simd_levels(); }

uint32_t num_gpus() {
  uint32_t count = 0;
  for (const backends::Backend* backend : compiled_backends())
    if (backend->device_memory() != nullptr) count += static_cast<uint32_t>(backend->device_memory()->num_devices());
  return count;
}

}  // namespace megamoe::api
