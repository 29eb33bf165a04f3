// Bytes of GPU memory for tests of groups; without CUDA there are none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megamoe::test {

uint32_t num_gpus();
/// To or from GPU memory; ends the process where CUDA fails.
void copy_gpu_bytes(void* to, const void* from, size_t count);

}  // namespace megamoe::test
