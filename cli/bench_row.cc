// The keys that say where a figure comes from.
#include "cli/bench_row.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "api/machine.h"

#ifndef MEGAMOE_COMMIT
#define MEGAMOE_COMMIT ""
#endif

namespace megamoe::cli {

std::string date_text() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

std::string_view commit_text() { return MEGAMOE_COMMIT; }

void begin_bench_row(JsonWriter& json, std::string_view bench, Verdict verdict, const Machine& machine) {
  begin_answer(json, "bench", verdict);
  json.key("bench").text(bench);
  json.key("date").text(date_text());
  json.key("commit");
  commit_text().empty() ? json.null() : json.text(commit_text());
  json.key("hardware").text(fmt::format("{}, {} cores", machine.cpu_model, machine.num_cores));
  json.key("simd").text(api::simd_level());
}

}  // namespace megamoe::cli
