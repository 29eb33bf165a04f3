// `megamoe run` on one rank of a group of processes, from joining the group to leaving it.
#pragma once

#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/outcome.h"
#include "megamoe/process_group.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Loads this rank's part, runs the layer with the others, and brings all rows together on rank 0, which judges and
/// prints; the others answer kOk in silence. A failure of one rank is returned on all.
/// @param options  where they are an error, the other ranks are told so
Result<Verdict> run_rank_process(const Arguments& arguments, const Result<RunOptions>& options,
                                 ProcessGroupOptions group);

}  // namespace megamoe::cli
