// Every environment variable that the library reads: name, values, default, one sentence. `megamoe doctor` prints this
// table.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "megamoe/status.h"

namespace megamoe::api {

struct EnvironmentOption {
  const char* name;
  const char* values;
  const char* default_value;
  const char* meaning;
};

std::span<const EnvironmentOption> environment_options();
/// The value, or nothing where the variable is unset or empty.
std::optional<std::string> environment_value(const char* name);

/// Applies what must be in force before the first layer (the SIMD level). Errors name the variable.
Status apply_environment();

}  // namespace megamoe::api
