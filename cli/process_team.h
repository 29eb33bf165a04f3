// The ranks of one run as processes of this one: started, watched, and all gone at the end.
#pragma once

#include <cstdint>
#include <functional>

#include "cli/outcome.h"
#include "megamoe/process_group.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Forks a process for each rank, which calls `work` with its place in the group, and waits for all of them. Returns
/// rank 0's verdict, or why a rank failed: a process that was killed before one that only heard of it. Once a rank has
/// failed, the others have 1.5 s to end by themselves. Must be called while this process has one thread; its
/// children end with it.
Result<Verdict> run_process_team(uint32_t num_ranks, const std::function<Result<Verdict>(ProcessGroupOptions)>& work);

}  // namespace megamoe::cli
