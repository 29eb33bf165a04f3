// Hands on what the CPU backend knows about this machine.
#include "api/machine.h"

#include "backends/cpu/kernels/kernels.h"

namespace megamoe::api {

std::string_view simd_level() { return cpu::simd_level(); }

std::vector<std::string_view> usable_simd_levels() { return cpu::usable_simd_levels(); }

}  // namespace megamoe::api
