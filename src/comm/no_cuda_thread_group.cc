// What a build without CUDA says when it is asked for memory on a GPU.
#include "megamoe/symmetric_memory.h"

namespace megamoe {

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_cuda_thread_group(uint32_t, int32_t) {
  return Status{Code::kNotSupported,
                "make_cuda_thread_group: memory on a GPU needs a build with CUDA, got one without; configure with "
                "-DMEGAMOE_CUDA=ON, or use make_thread_group"};
}

}  // namespace megamoe
