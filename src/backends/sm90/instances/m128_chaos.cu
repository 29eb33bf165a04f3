// Compiles the kernel for M128Chaos; see specs.h.
#include "backends/sm90/instance.h"
#include "backends/sm90/moe_layer.cuh"
#include "backends/sm90/specs.h"

namespace megamoe::sm90 {

const KernelInstance& m128_chaos_instance() {
  static const KernelInstance instance{M128Chaos::kSpec, reinterpret_cast<const void*>(&moe_layer<M128Chaos>),
                                       sizeof(SharedStorage<M128Chaos>)};
  return instance;
}

}  // namespace megamoe::sm90
