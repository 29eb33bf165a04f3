// The entry point: words in, exit code out.
#include <fmt/format.h>

#include <array>
#include <exception>
#include <string>
#include <utility>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/outcome.h"

namespace {

using megamoe::cli::Arguments;
using megamoe::cli::Verdict;

megamoe::Result<Verdict> dispatch(const Arguments& arguments) {
  using Command = megamoe::Result<Verdict> (*)(const Arguments&);
  static constexpr std::array<std::pair<std::string_view, Command>, 6> kCommands = {{
      {"run", megamoe::cli::run_command},
      {"plan", megamoe::cli::plan_command},
      {"inspect", megamoe::cli::inspect_command},
      {"models", megamoe::cli::models_command},
      {"bench", megamoe::cli::bench_command},
      {"doctor", megamoe::cli::doctor_command},
  }};
  for (const auto& [name, command] : kCommands) {
    if (name == arguments.command) return command(arguments);
  }
  return megamoe::Status(megamoe::Code::kInternal, "megamoe: no code belongs to command " + arguments.command);
}

Verdict answer(int argc, char** argv) {
  const bool as_json = megamoe::cli::wants_json(argc, argv);
  auto arguments = megamoe::cli::parse_arguments(argc, argv);
  if (!arguments.ok()) {
    return megamoe::cli::report_failure(megamoe::cli::command_of(argc, argv), arguments.status(), as_json);
  }
  if (!arguments->text.empty()) {
    if (as_json && arguments->command == "version") {
      megamoe::cli::JsonWriter json;
      megamoe::cli::begin_answer(json, "version", Verdict::kOk);
      json.end_object();
      megamoe::cli::print_json(json);
    } else {
      fmt::print("{}", arguments->text);
    }
    return Verdict::kOk;
  }
  auto verdict = dispatch(arguments.value());
  if (!verdict.ok()) return megamoe::cli::report_failure(arguments->command, verdict.status(), as_json);
  return verdict.value();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return static_cast<int>(answer(argc, argv));
  } catch (const std::exception& error) {  // Out of memory in a string, a thread that cannot start.
    const megamoe::Status status(megamoe::Code::kInternal, std::string("megamoe: the system refused: ") + error.what());
    return static_cast<int>(megamoe::cli::report_failure(megamoe::cli::command_of(argc, argv), status,
                                                         megamoe::cli::wants_json(argc, argv)));
  }
}
