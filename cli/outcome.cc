// The one place that turns a status into words and an exit code.
#include "cli/outcome.h"

#include <fmt/format.h>

#include <cstdio>

namespace megamoe::cli {

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kMismatch:
      return "mismatch";
    case Verdict::kBadInput:
      return "bad_input";
    case Verdict::kRuntimeError:
      break;
  }
  return "runtime_error";
}

Verdict verdict_of(const Status& error) {
  switch (error.code()) {
    case Code::kOk:
      return Verdict::kOk;
    case Code::kInvalidArgument:
    case Code::kNotSupported:
    case Code::kBadFile:
      return Verdict::kBadInput;
    default:
      return Verdict::kRuntimeError;
  }
}

void begin_answer(JsonWriter& json, std::string_view command, Verdict verdict) {
  json.begin_object();
  json.key("schema_version").whole(kSchemaVersion);
  json.key("command").text(command);
  json.key("status").text(name(verdict));
  json.key("version").text(MEGAMOE_VERSION);
}

void print_json(const JsonWriter& json) {
  fmt::print("{}\n", json.str());
  std::fflush(stdout);
}

Verdict report_failure(std::string_view command, const Status& error, bool as_json) {
  const Verdict verdict = verdict_of(error);
  if (as_json) {
    JsonWriter json;
    begin_answer(json, command, verdict);
    json.key("error").begin_object();
    json.key("code").text(megamoe::name(error.code()));
    json.key("message").text(error.message());
    json.end_object().end_object();
    print_json(json);
  } else {
    fmt::print(stderr, "error: {}\n", error.message());
  }
  return verdict;
}

}  // namespace megamoe::cli
