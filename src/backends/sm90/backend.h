// The SM90 backend: Hopper GPUs (H100, H200), one kernel launch a call.
#pragma once

#include "backends/backend.h"
#include "backends/sm90/instance.h"

namespace megamoe::sm90 {

const backends::Backend& backend();

/// The choices for a shape; public so that tests can vary them.
/// @param instance  null: chosen from the shape and the capacity
Result<backends::BackendPlan> plan_sm90(const LayerConfig& config, uint32_t num_ranks,
                                        const KernelInstance* instance = nullptr);

}  // namespace megamoe::sm90
