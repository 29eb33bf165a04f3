// How a command ends: the word in JSON, the exit code, and the sentence when it failed.
#pragma once

#include <cstdint>
#include <string_view>

#include "cli/json_writer.h"
#include "megamoe/status.h"

namespace megamoe::cli {

inline constexpr uint64_t kSchemaVersion = 1;

/// The value is the exit code.
enum class Verdict : int { kOk = 0, kMismatch = 1, kBadInput = 2, kRuntimeError = 3 };

/// "ok", "mismatch", "bad_input", "runtime_error".
std::string_view name(Verdict verdict);

/// kBadInput for what the user can correct, kRuntimeError for what the machine or another rank did.
Verdict verdict_of(const Status& error);

/// Opens the object that every --json answer is, with the keys all of them share.
void begin_answer(JsonWriter& json, std::string_view command, Verdict verdict);

/// Writes a document and a newline to stdout.
void print_json(const JsonWriter& json);

/// Reports `error` on stderr, or as JSON on stdout, and returns its verdict.
Verdict report_failure(std::string_view command, const Status& error, bool as_json);

}  // namespace megamoe::cli
