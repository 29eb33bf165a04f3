// Hash, output file, oracle, comparison, report.
#include "cli/run_finish.h"

#include <algorithm>

#include "cli/oracle_check.h"
#include "cli/stopwatch.h"
#include "io/layer_files.h"

namespace megamoe::cli {
namespace {

/// FNV-1a over the bytes: equal outputs have equal hashes, on every run and number of ranks.
uint64_t hash_of(std::span<const uint16_t> values) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint16_t value : values) {
    for (const uint8_t byte : {static_cast<uint8_t>(value & 0xff), static_cast<uint8_t>(value >> 8)}) {
      hash = (hash ^ byte) * 0x100000001b3;
    }
  }
  return hash;
}

}  // namespace

RunReport begin_report(const LayerData& data, std::string_view transport) {
  RunReport report;
  report.title = data.title;
  report.shape = data.shape;
  report.num_ranks = data.num_ranks();
  report.transport = transport;
  report.tokens_per_rank = data.tokens_per_rank;
  report.whole_block = data.whole_block;
  report.agreement = data.agreement;
  for (const io::LayerWeights& weights : data.weights) add_notes(weights.notes, report);
  add_notes(data.notes, report);
  return report;
}

void add_notes(const std::vector<std::string>& notes, RunReport& report) {
  for (const std::string& note : notes) {
    if (std::find(report.notes.begin(), report.notes.end(), note) == report.notes.end()) report.notes.push_back(note);
  }
}

Result<Verdict> finish_run(const Arguments& arguments, const RunOptions& options, LayerData data, RunReport report,
                           const io::Buffer<uint16_t>& output) {
  report.output_hash = hash_of(output.span());
  if (!options.output.empty()) {
    MEGAMOE_RETURN_IF_ERROR(io::write_layer_output(options.output, output.span(), data.tokens_before(data.num_ranks()),
                                                   data.shape.hidden, {{"layer", data.title}}));
    report.output_path = options.output;
  }
  Stopwatch watch;
  if (data.compare) {
    report.compare = check_against_compare(data, output.span());
    report.compare_name = data.compare_name;
    report.compare_limits = data.weights_were_fp8 ? kFp8WeightLimits : kPackedWeightLimits;
  }
  const std::vector<uint64_t> rows = rows_to_check(options.check, data, options.random.seed);
  if (!rows.empty() && !data.holds_all_ranks()) {
    const RankRange all_ranks{0, data.num_ranks()};
    data = LayerData();  // Room for what replaces it.
    auto whole = load_layer(options, all_ranks);
    if (!whole.ok()) return whole.status();
    data = std::move(whole).value();
  }
  report.oracle = check_against_oracle(data, output.span(), rows);
  report.times.check_ns = watch.lap_ns();

  if (arguments.json) {
    print_run_json(report);
  } else {
    print_run_report(report, options);
  }
  return report.verdict();
}

}  // namespace megamoe::cli
