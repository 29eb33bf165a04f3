// Ranks as threads that share one GPU: collective calls over a thread group, memory in one cudaMalloc.
#pragma once

#include <memory>
#include <vector>

#include "megamoe/symmetric_memory.h"

namespace megamoe::device_check {

std::vector<std::shared_ptr<SymmetricMemory>> make_gpu_group(uint32_t num_ranks);

}  // namespace megamoe::device_check
