// The words and the JSON of a run.
#include "cli/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/text_format.h"

namespace megamoe::cli {
namespace {

struct Balance {
  uint64_t total = 0;
  uint64_t max = 0;
  double max_over_mean = 0;
};

Balance balance_of(const std::vector<uint64_t>& rows) {
  Balance balance;
  balance.total = std::accumulate(rows.begin(), rows.end(), uint64_t{0});
  balance.max = *std::max_element(rows.begin(), rows.end());
  if (balance.total > 0) {
    balance.max_over_mean = static_cast<double>(balance.max * rows.size()) / static_cast<double>(balance.total);
  }
  return balance;
}

std::vector<uint64_t> rows_per_rank(const RunReport& report) {
  std::vector<uint64_t> rows(report.num_ranks, 0);
  const size_t experts_per_rank = report.rows_per_expert.size() / report.num_ranks;
  for (size_t expert = 0; expert < report.rows_per_expert.size(); ++expert) {
    rows[expert / experts_per_rank] += report.rows_per_expert[expert];
  }
  return rows;
}

struct Stage {
  const char* key;
  const char* meaning;
  uint64_t RunTimes::*ns;
};
constexpr Stage kStages[] = {
    {"route", "sort slots, exchange headers", &RunTimes::route_ns},
    {"quantize", "tokens to E4M3", &RunTimes::quantize_ns},
    {"pull", "fetch tokens from their ranks", &RunTimes::pull_ns},
    {"l1", "first GEMM, SwiGLU, requantise", &RunTimes::l1_ns},
    {"l2", "second GEMM, send rows back", &RunTimes::l2_ns},
    {"combine", "wait for rows, sum the slots of a token", &RunTimes::combine_ns},
};

std::string tokens_text(const std::vector<uint32_t>& tokens) {
  if (std::all_of(tokens.begin(), tokens.end(), [&](uint32_t count) { return count == tokens.front(); })) {
    return fmt::format("{} tokens on each", tokens.front());
  }
  return fmt::format("tokens {}", fmt::join(tokens, " + "));
}

void print_stages(const RunTimes& times) {
  uint64_t total = 0;
  for (const Stage& stage : kStages) total += times.*stage.ns;
  if (total == 0) return;  // A backend that does not time its stages.
  fmt::print("stages     time of all threads of all ranks, {} together\n", duration_text(total));
  for (const Stage& stage : kStages) {
    const uint64_t ns = times.*stage.ns;
    const double share = 100.0 * static_cast<double>(ns) / static_cast<double>(total);
    fmt::print("  {:<9}{:>10} {:>5.1f} %  {}\n", stage.key, duration_text(ns), share, stage.meaning);
  }
}

void print_next_steps(const RunReport& report, const RunOptions& options) {
  fmt::print("next\n");
  const std::string target = options.layer.model ? fmt::format("--model {}", options.layer.model->name)
                                                 : fmt::format("--checkpoint {}", options.layer.checkpoint);
  if (report.verdict() == Verdict::kMismatch) {
    fmt::print(
        "  which rows: repeat with --check all; a wrong gate/up order or wrong scales spoil every row,\n"
        "  a transport fault only some; megamoe doctor shows the SIMD level, MEGAMOE_SIMD=scalar forces the plain "
        "one\n");
    return;
  }
  uint32_t other_ranks = 0;
  for (uint32_t ranks = 1; ranks <= std::min(report.shape.num_experts, 8U); ++ranks) {
    if (report.shape.num_experts % ranks == 0 && ranks != report.num_ranks) other_ranks = ranks;
  }
  if (other_ranks != 0 && !options.layer.model) {
    fmt::print("  the same bits (output hash) on any number of ranks: add --ranks {}\n", other_ranks);
  }
  const bool on_gpu = report.plan.backend == "cuda";
  fmt::print("  its memory and schedule: megamoe plan {}{} --ranks {} --tokens {}{}\n", target,
             options.layer.model ? "" : fmt::format(" --layer {}", options.layer.layer), report.num_ranks,
             std::max(1U, *std::max_element(report.tokens_per_rank.begin(), report.tokens_per_rank.end())),
             on_gpu ? " --device cuda" : "");
  if (!options.layer.model || options.layer.model->name == "tiny") {
    fmt::print("  a real model's shape: megamoe run --model deepseek-v4-flash --ranks 8 --tokens 16 (6.5 GB)\n");
  } else if (!on_gpu) {
    fmt::print("  its speed with floors: megamoe bench {} --ranks {} --tokens {}\n", target, report.num_ranks,
               report.tokens_per_rank.front());
  }
}

}  // namespace

void RunTimes::add_stages(const ForwardReport& rank) {
  route_ns += rank.route_ns;
  quantize_ns += rank.quantize_ns;
  pull_ns += rank.pull_ns;
  l1_ns += rank.l1_ns;
  l2_ns += rank.l2_ns;
  combine_ns += rank.combine_ns;
}

void RunTimes::add_stages(const RunTimes& rank) {
  for (const Stage& stage : kStages) this->*stage.ns += rank.*stage.ns;
}

std::string RunReport::mismatch() const {
  std::string text;
  if (!oracle_passes()) {
    text += fmt::format(
        "megamoe run: no row may differ from the FP64 oracle by more than {:g} (relative L2), got {:.3g} in "
        "row {}; repeat with --check all to see how many rows differ",
        max_row_limit(), oracle.max_row_rel_l2, oracle.worst_row);
  }
  if (!compare_passes()) {
    text += fmt::format(
        "{}megamoe run: rows may differ from {} by at most {:g} and by {:g} on average (relative L2), since tokens are "
        "quantised to FP8, got {:.3g} in row {} and {:.3g} on average; {}",
        text.empty() ? "" : "; ", compare_name, compare_limits.max_row, compare_limits.mean_row, compare.max_row_rel_l2,
        compare.worst_row, compare.mean_row_rel_l2,
        whole_block ? "compare with the output of the whole block, shared experts included, residual not"
                    : "compare with the routed experts' output alone, without shared experts or residual");
  }
  return text;
}

void print_run_report(const RunReport& report, const RunOptions& options) {
  fmt::print("layer      {}\n", report.title);
  fmt::print("shape      hidden {}, intermediate {}, {} experts, top-{}\n", report.shape.hidden,
             report.shape.intermediate, report.shape.num_experts, report.shape.top_k);
  const std::string simd = report.simd == "none" ? "" : fmt::format(" ({})", report.simd);
  fmt::print("ranks      {} on {}{} as {}, {}\n", report.num_ranks, report.plan.backend, simd, report.transport,
             tokens_text(report.tokens_per_rank));
  fmt::print("kernel     {}\n", report.plan.kernel);
  for (const std::string& note : report.notes) fmt::print("note       {}\n", note);
  const Balance ranks = balance_of(rows_per_rank(report));
  const Balance experts = balance_of(report.rows_per_expert);
  fmt::print("routing    {} rows; most on a rank {} (max/mean {:.2f}), most on an expert {} (max/mean {:.2f})\n",
             ranks.total, ranks.max, ranks.max_over_mean, experts.max, experts.max_over_mean);
  if (report.agreement) {
    fmt::print("router     chooses the experts of the file for {} of {} tokens\n", report.agreement->num_equal,
               report.agreement->num_tokens);
  }
  fmt::print("time       load {}, create {}, forward {}, check {}\n", duration_text(report.times.load_ns),
             duration_text(report.times.create_ns), duration_text(report.times.forward_ns),
             duration_text(report.times.check_ns));
  print_stages(report.times);
  fmt::print("output     hash {:016x}{}\n", report.output_hash,
             report.output_path.empty() ? "" : ", written to " + report.output_path);
  if (report.oracle.rows_checked == 0) {
    fmt::print("oracle     not checked\n");
  } else {
    fmt::print(
        "oracle     {}: {} rows against FP64, relative L2 {:.2e} at most (limit {:.1e}), cosine {:.8f} at least\n",
        report.oracle_passes() ? "pass" : "FAIL", report.oracle.rows_checked, report.oracle.max_row_rel_l2,
        report.max_row_limit(), report.oracle.min_row_cosine);
  }
  if (!report.compare_name.empty()) {
    fmt::print(
        "compare    {}: {} rows against {}, relative L2 {:.2e} at most (limit {:.1e}), {:.2e} on average (limit "
        "{:.1e})\n",
        report.compare_passes() ? "pass" : "FAIL", report.compare.rows_checked, report.compare_name,
        report.compare.max_row_rel_l2, report.compare_limits.max_row, report.compare.mean_row_rel_l2,
        report.compare_limits.mean_row);
  }
  fmt::print("result     {}\n", name(report.verdict()));
  print_next_steps(report, options);
  std::fflush(stdout);
  if (report.verdict() == Verdict::kMismatch) fmt::print(stderr, "error: {}\n", report.mismatch());
}

void print_run_json(const RunReport& report) {
  JsonWriter json;
  begin_answer(json, "run", report.verdict());
  json.key("layer").text(report.title);
  json.key("part").text(report.whole_block ? "block" : "routed");
  json.key("backend").text(report.plan.backend);
  json.key("simd").text(report.simd);
  json.key("kernel").text(report.plan.kernel);
  json.key("ranks").whole(report.num_ranks);
  json.key("transport").text(report.transport);
  json.key("shape");
  write_shape(json, report.shape);
  json.key("tokens_per_rank").wholes(report.tokens_per_rank);
  json.key("rows_per_rank").wholes(rows_per_rank(report));
  json.key("rows_per_expert").wholes(report.rows_per_expert);
  json.key("balance").begin_object();
  json.key("max_over_mean_rank").real(balance_of(rows_per_rank(report)).max_over_mean);
  json.key("max_over_mean_expert").real(balance_of(report.rows_per_expert).max_over_mean);
  json.end_object();
  json.key("routing_agreement");
  if (report.agreement) {
    json.begin_object();
    json.key("tokens").whole(report.agreement->num_tokens);
    json.key("equal").whole(report.agreement->num_equal);
    json.end_object();
  } else {
    json.null();
  }
  json.key("workspace_bytes").whole(report.plan.workspace_bytes);

  const auto micros = [](uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  json.key("time_us").begin_object();
  json.key("load").real(micros(report.times.load_ns));
  json.key("create").real(micros(report.times.create_ns));
  json.key("forward").real(micros(report.times.forward_ns));
  json.key("check").real(micros(report.times.check_ns));
  for (const Stage& stage : kStages) json.key(stage.key).real(micros(report.times.*stage.ns));
  json.end_object();

  json.key("output_hash").text(fmt::format("{:016x}", report.output_hash));
  json.key("output");
  report.output_path.empty() ? json.null() : json.text(report.output_path);
  const auto figure = [&](const char* key, bool checked, double value) {
    json.key(key);
    checked ? json.real(value) : json.null();
  };
  json.key("error").begin_object();
  if (report.verdict() == Verdict::kMismatch) {
    json.key("code").text("mismatch");
    json.key("message").text(report.mismatch());
  }
  const bool has_oracle = report.oracle.rows_checked != 0;
  json.key("oracle").begin_object();
  figure("max_row_rel_l2", has_oracle, report.oracle.max_row_rel_l2);
  figure("min_row_cosine", has_oracle, report.oracle.min_row_cosine);
  json.key("rows_checked");
  has_oracle ? json.whole(report.oracle.rows_checked) : json.null();
  figure("max_row_limit", has_oracle, report.max_row_limit());
  json.end_object();
  const bool has_compare = report.compare.rows_checked != 0;
  json.key("compare").begin_object();
  json.key("tensor");
  report.compare_name.empty() ? json.null() : json.text(report.compare_name);
  figure("max_row_rel_l2", has_compare, report.compare.max_row_rel_l2);
  figure("mean_row_rel_l2", has_compare, report.compare.mean_row_rel_l2);
  figure("max_row_limit", has_compare, report.compare_limits.max_row);
  figure("mean_row_limit", has_compare, report.compare_limits.mean_row);
  json.end_object().end_object();
  json.key("notes").begin_array();
  for (const std::string& note : report.notes) json.text(note);
  json.end_array().end_object();
  print_json(json);
}

}  // namespace megamoe::cli
