// The CPU backend: any machine, any number of ranks as threads or processes.
#pragma once

#include "backends/backend.h"

namespace megamoe::cpu {

const backends::Backend& backend();

/// The choices for a shape; public so that tests can vary them.
Result<backends::BackendPlan> plan_cpu(const LayerConfig& config, uint32_t num_ranks);

}  // namespace megamoe::cpu
