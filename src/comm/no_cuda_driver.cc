// What a build without CUDA says when it is asked for memory on a GPU.
#include <fmt/format.h>

#include "comm/gpu_driver.h"

namespace megamoe::comm {

Result<GpuDriver*> cuda_driver(const char* where) {
  return Status{Code::kNotSupported,
                fmt::format("{}: memory on a GPU needs a build with CUDA, got one without; configure with "
                            "-DMEGAMOE_CUDA=ON, or use a group in host memory",
                            where)};
}

}  // namespace megamoe::comm
