// What `megamoe run` found, and how it is told: to people and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/layer_data.h"
#include "cli/options.h"
#include "cli/oracle_check.h"
#include "cli/outcome.h"
#include "core/reference/row_error.h"
#include "megamoe/moe_layer.h"

namespace megamoe::cli {

/// Nanoseconds of one run. The first group is time on the clock, the second is summed over the threads of all ranks.
struct RunTimes {
  uint64_t load_ns = 0, create_ns = 0, forward_ns = 0, check_ns = 0;
  uint64_t route_ns = 0, quantize_ns = 0, pull_ns = 0, l1_ns = 0, l2_ns = 0, combine_ns = 0;

  /// Adds one rank's stages.
  void add_stages(const ForwardReport& rank);
  void add_stages(const RunTimes& rank);
};

struct RunReport {
  std::string title;
  bool whole_block = false;
  std::optional<RoutingAgreement> agreement;
  MoeShape shape;
  LayerPlan plan;
  std::string simd;
  uint32_t num_ranks = 0;
  std::string transport;  ///< "threads", "processes".
  std::vector<uint32_t> tokens_per_rank;
  std::vector<uint64_t> rows_per_expert;
  RunTimes times;
  uint64_t output_hash = 0;
  std::string output_path;
  std::vector<std::string> notes;

  reference::ErrorSummary oracle;  ///< rows_checked is 0 where the check was not wanted.
  reference::ErrorSummary compare;
  std::string compare_name;
  CompareLimits compare_limits;

  double max_row_limit() const { return oracle_limit(plan.backend, shape); }
  bool oracle_passes() const { return !(oracle.max_row_rel_l2 > max_row_limit()); }
  bool compare_passes() const {
    return !(compare.max_row_rel_l2 > compare_limits.max_row || compare.mean_row_rel_l2 > compare_limits.mean_row);
  }
  Verdict verdict() const { return oracle_passes() && compare_passes() ? Verdict::kOk : Verdict::kMismatch; }
  /// The sentence of a mismatch; empty where all is well.
  std::string mismatch() const;
};

void print_run_report(const RunReport& report, const RunOptions& options);
void print_run_json(const RunReport& report);

}  // namespace megamoe::cli
