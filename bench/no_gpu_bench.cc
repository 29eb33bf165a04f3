// The bench of builds without CUDA.
#include "bench/gpu_bench.h"

namespace megamoe::bench {

Result<std::unique_ptr<GpuBench>> GpuBench::create(const Subject& subject) {
  static_cast<void>(subject);
  return Status{
      Code::kNotSupported,
      "megamoe bench: device cuda needs a build with CUDA, got one without; configure with -DMEGAMOE_CUDA=ON, "
      "or use --device cpu"};
}

}  // namespace megamoe::bench
