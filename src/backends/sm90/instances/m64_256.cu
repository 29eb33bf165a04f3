// Compiles the kernel for M64Single; see specs.h.
#include "backends/sm90/instance.h"
#include "backends/sm90/moe_layer.cuh"
#include "backends/sm90/specs.h"

namespace megamoe::sm90 {

const KernelInstance& m64_256_instance() {
  static const KernelInstance instance{M64Single::kSpec, reinterpret_cast<const void*>(&moe_layer<M64Single>),
                                       sizeof(SharedStorage<M64Single>)};
  return instance;
}

}  // namespace megamoe::sm90
