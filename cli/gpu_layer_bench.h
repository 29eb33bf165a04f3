// `megamoe bench --device cuda`: every combination of model, tokens, input, protocol and routing that was asked for.
#pragma once

#include "cli/options.h"
#include "cli/outcome.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Prints a JSON line for each figure to stdout, a table to stderr (not with --json), and appends the figures to a file
/// where one is given. Errors: kNotSupported in a build without CUDA; those of making and running a layer.
Result<Verdict> bench_gpu_layer(const BenchOptions& options, bool as_json);

}  // namespace megamoe::cli
