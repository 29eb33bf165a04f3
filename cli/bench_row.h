// What every JSON line of `megamoe bench` begins with: what was measured, when, on what.
#pragma once

#include <string>
#include <string_view>

#include "cli/json_writer.h"
#include "cli/machine.h"
#include "cli/outcome.h"

namespace megamoe::cli {

/// Now, "2026-11-30T22:00:00Z".
std::string date_text();
/// Of the build; empty where it is not known.
std::string_view commit_text();

/// Opens the object; `bench` is "layer" or "gemm_vs_openblas".
void begin_bench_row(JsonWriter& json, std::string_view bench, Verdict verdict, const Machine& machine);

}  // namespace megamoe::cli
