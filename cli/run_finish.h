// The end of every run, where all output rows are in one place: write them, judge them, tell.
#pragma once

#include "cli/arguments.h"
#include "cli/layer_data.h"
#include "cli/options.h"
#include "cli/outcome.h"
#include "cli/run_report.h"
#include "io/buffer.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// What a report says before the layer ran.
RunReport begin_report(const LayerData& data, std::string_view transport);

/// Adds the notes that the report does not have yet.
void add_notes(const std::vector<std::string>& notes, RunReport& report);

/// @param data  may hold a part of the ranks: the others are loaded where rows are to be checked
/// @param output  BF16 rows of all ranks' tokens
Result<Verdict> finish_run(const Arguments& arguments, const RunOptions& options, LayerData data, RunReport report,
                           const io::Buffer<uint16_t>& output);

}  // namespace megamoe::cli
