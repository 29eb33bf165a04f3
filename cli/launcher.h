// Which rank of a launcher's group this process is, if a launcher started it.
#pragma once

#include <optional>

#include "megamoe/process_group.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Nothing where no variable of torchrun or mpirun is set; an error where they contradict each other or this machine.
Result<std::optional<ProcessGroupOptions>> launched_group();

}  // namespace megamoe::cli
