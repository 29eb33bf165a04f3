// Groups with memory on GPUs over any driver: what the public functions do with CUDA's, and tests with a stand-in.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/gpu_driver.h"
#include "megamoe/process_group.h"
#include "megamoe/symmetric_memory.h"

namespace megamoe::comm {

/// As megamoe::make_cuda_thread_group. The driver must outlive the group.
Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_gpu_thread_group(GpuDriver& driver,
                                                                            std::span<const int32_t> device_indices);

/// As megamoe::join_cuda_process_group.
Result<std::shared_ptr<SymmetricMemory>> join_gpu_process_group(GpuDriver& driver, const ProcessGroupOptions& options,
                                                                int32_t device_index);

}  // namespace megamoe::comm
