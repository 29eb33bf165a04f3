// Compiles the kernel for M64; see specs.h.
#include "backends/sm90/instance.h"
#include "backends/sm90/moe_layer.cuh"
#include "backends/sm90/specs.h"

namespace megamoe::sm90 {

const KernelInstance& m64_instance() {
  static const KernelInstance instance{M64::kSpec, reinterpret_cast<const void*>(&moe_layer<M64>),
                                       sizeof(SharedStorage<M64>)};
  return instance;
}

}  // namespace megamoe::sm90
