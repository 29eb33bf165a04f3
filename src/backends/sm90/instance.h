// A compiled kernel as the host sees it. One file of instances/ each, so that they compile side by side.
#pragma once

#include "protocol/kernel_spec.h"

namespace megamoe::sm90 {

struct KernelInstance {
  protocol::KernelSpec spec;
  const void* function = nullptr;
  uint32_t shared_bytes = 0;
};

const KernelInstance& m128_instance();
const KernelInstance& m128_trace_instance();
const KernelInstance& m128_chaos_instance();
const KernelInstance& m64_instance();
const KernelInstance& m64_768_instance();
const KernelInstance& m64_256_instance();

}  // namespace megamoe::sm90
