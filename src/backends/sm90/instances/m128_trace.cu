// Compiles the kernel for M128Trace; see specs.h.
#include "backends/sm90/instance.h"
#include "backends/sm90/moe_layer.cuh"
#include "backends/sm90/specs.h"

namespace megamoe::sm90 {

const KernelInstance& m128_trace_instance() {
  static const KernelInstance instance{M128Trace::kSpec, reinterpret_cast<const void*>(&moe_layer<M128Trace>),
                                       sizeof(SharedStorage<M128Trace>)};
  return instance;
}

}  // namespace megamoe::sm90
