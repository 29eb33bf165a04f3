// Compiles the kernel for M64Wide; see specs.h.
#include "backends/sm90/instance.h"
#include "backends/sm90/moe_layer.cuh"
#include "backends/sm90/specs.h"

namespace megamoe::sm90 {

const KernelInstance& m64_768_instance() {
  static const KernelInstance instance{M64Wide::kSpec, reinterpret_cast<const void*>(&moe_layer<M64Wide>),
                                       sizeof(SharedStorage<M64Wide>)};
  return instance;
}

}  // namespace megamoe::sm90
