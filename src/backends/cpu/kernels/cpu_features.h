// What this CPU and its operating system can run. Highway's headers compile the kernels; its library is not needed.
#pragma once

#include "backends/cpu/kernels/kernel_table.h"

namespace megamoe::cpu {

/// Whether every instruction of the level may be executed here. kScalar: always.
bool cpu_supports(SimdLevel level);

}  // namespace megamoe::cpu
