// The commands. Each prints its own answer when it gets one; a failure is returned for the caller to report.
#pragma once

#include "cli/arguments.h"
#include "cli/outcome.h"
#include "megamoe/status.h"

namespace megamoe::cli {

Result<Verdict> run_command(const Arguments& arguments);
Result<Verdict> plan_command(const Arguments& arguments);
Result<Verdict> inspect_command(const Arguments& arguments);
Result<Verdict> models_command(const Arguments& arguments);
Result<Verdict> bench_command(const Arguments& arguments);
Result<Verdict> doctor_command(const Arguments& arguments);

}  // namespace megamoe::cli
