// What every JSON line of `megamoe bench` begins with: what was measured, when, on what.
#pragma once

#include <string_view>

#include "cli/json_writer.h"
#include "cli/machine.h"
#include "cli/outcome.h"

namespace megamoe::cli {

/// Opens the object; `bench` is "layer" or "gemm_vs_openblas".
void begin_bench_row(JsonWriter& json, std::string_view bench, Verdict verdict, const Machine& machine);

}  // namespace megamoe::cli
