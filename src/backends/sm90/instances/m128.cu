// Compiles the kernel for M128; see specs.h.
#include "backends/sm90/instance.h"
#include "backends/sm90/moe_layer.cuh"
#include "backends/sm90/specs.h"

namespace megamoe::sm90 {

const KernelInstance& m128_instance() {
  static const KernelInstance instance{M128::kSpec, reinterpret_cast<const void*>(&moe_layer<M128>),
                                       sizeof(SharedStorage<M128>)};
  return instance;
}

}  // namespace megamoe::sm90
