// The two kernels of the probe, as the host launches them.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/gpu_probe.h"

namespace megamoe::comm {

cudaError_t launch_tell(const ProbeCall& call, cudaStream_t stream);
cudaError_t launch_hear(const ProbeCall& call, cudaStream_t stream);

}  // namespace megamoe::comm
