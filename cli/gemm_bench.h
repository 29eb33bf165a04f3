// The second part of `megamoe bench`: the FP8 GEMM alone beside OpenBLAS sgemm, same numbers, same threads, same run.
#pragma once

#include "cli/machine.h"
#include "cli/options.h"
#include "cli/outcome.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Prints a row for each GEMM of the flash shape (hidden 4096, intermediate 2048) at 64 and 256 rows. kMismatch where
/// one is below `options.min_ratio`, or the two did not compute the same.
/// Errors: kNotSupported where a ratio is asked for and OpenBLAS is not installed.
Result<Verdict> bench_gemm(const BenchOptions& options, const Machine& machine, bool as_json);

}  // namespace megamoe::cli
