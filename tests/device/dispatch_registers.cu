// The dispatch role alone as a kernel, to see what it needs: scripts/dispatch_registers.sh compiles it with 32, 40, 56
// and more registers and prints the spills. Never launched.
#include "backends/sm90/moe_layer.cuh"
#include "backends/sm90/specs.h"

namespace megamoe::sm90 {

extern "C" __global__ void __maxnreg__(MEGAMOE_REGISTERS) dispatch_only(const __grid_constant__ KernelArgs args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  Context<M128> c{args, *reinterpret_cast<SharedStorage<M128>*>(shared_bytes)};
  if (!wait_plan(c, Role::kDispatch) || !pull_rows(c, c.warp())) return;
#ifdef MEGAMOE_WITH_COMBINE
  combine<4, 1, 400, true>(c);
#endif
}

}  // namespace megamoe::sm90
