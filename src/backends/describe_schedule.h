// What a plan says of its schedule: the same words for every backend.
#pragma once

#include "backends/backend.h"

namespace megamoe::backends {

/// As ScheduleSpec::lag_units: the whole first GEMM runs before the second.
inline constexpr uint32_t kLagOfAllUnits = 1u << 20;

/// Fills the report's schedule, block, ring, unit and lag from `plan.schedule` and `plan.workspace`.
void describe_schedule(BackendPlan& plan);

}  // namespace megamoe::backends
