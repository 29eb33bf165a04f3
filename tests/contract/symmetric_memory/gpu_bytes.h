// Bytes of GPU memory for tests of groups; without CUDA there are none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megamoe::test {

uint32_t num_gpus();
/// For the copies of this process.
void use_gpu(uint32_t index);
/// To or from GPU memory; ends the process where CUDA fails.
void copy_gpu_bytes(void* to, const void* from, size_t count);

}  // namespace megamoe::test
