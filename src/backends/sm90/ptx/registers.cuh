// Moving registers between warpgroups. PTX ISA 9.7.19 "setmaxnreg".
#pragma once

#include <cstdint>

namespace megamoe::sm90::ptx {

/// Every warp of the warpgroup must run the same one. Growing waits until others have given enough.
template <uint32_t kRegisters, uint32_t kEntryRegisters>
__device__ __forceinline__ void set_registers() {
  if constexpr (kRegisters > kEntryRegisters) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  } else if constexpr (kRegisters < kEntryRegisters) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
}

}  // namespace megamoe::sm90::ptx
