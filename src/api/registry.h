// The table of compiled backends, and which one a configuration gets.
#pragma once

#include <span>
#include <string>

#include "backends/backend.h"

namespace megamoe::api {

/// Fastest first.
std::span<const backends::Backend* const> compiled_backends();

/// @param name  "auto", or a backend's name
/// Errors: kInvalidArgument for an unknown name (lists the known ones); kNotSupported with the backend's reason.
Result<const backends::Backend*> choose_backend(const std::string& name);

}  // namespace megamoe::api
