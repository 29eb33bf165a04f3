// A build without CUDA has no GPU memory to copy.
#include <cstdlib>

#include "gpu_bytes.h"

namespace megamoe::test {

uint32_t num_gpus() { return 0; }

void use_gpu(uint32_t) {}

void copy_gpu_bytes(void*, const void*, size_t) { std::abort(); }

}  // namespace megamoe::test
