// What programs above the library may ask about the machine: the SIMD level in use.
#pragma once

#include <string_view>
#include <vector>

namespace megamoe::api {

/// The SIMD level of the CPU backend's arithmetic: "scalar", "sse4", "avx2" or "avx512".
std::string_view simd_level();

/// The levels this CPU can run, slowest first.
std::vector<std::string_view> usable_simd_levels();

/// GPUs that this process sees; 0 without a driver, or in a build without CUDA. Creates no context.
uint32_t num_gpus();

}  // namespace megamoe::api
