// The command line as words: which command, which options were given, with their texts. Meanings are in options.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::cli {

struct Arguments {
  std::string command;                        ///< "run", "plan", ...; "help" or "version" where `text` is the answer.
  std::map<std::string, std::string> values;  ///< Option name without dashes; only options that were given.
  bool json = false;
  std::string text;  ///< What --help or --version prints.

  bool has(const std::string& name) const { return values.contains(name); }
  /// Empty where the option was not given.
  std::string get(const std::string& name) const;
};

/// kInvalidArgument for an unknown command or option, a missing value, an option given twice.
Result<Arguments> parse_arguments(int argc, const char* const* argv);

/// Whether `--json` is among the words, also where they cannot be parsed.
bool wants_json(int argc, const char* const* argv);

/// The command among the words, or "megamoe"; for answers to words that cannot be parsed.
std::string command_of(int argc, const char* const* argv);

}  // namespace megamoe::cli
