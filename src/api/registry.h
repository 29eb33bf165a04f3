// The table of compiled backends, and which one a configuration gets.
#pragma once

#include <span>
#include <string>

#include "backends/backend.h"

namespace megamoe::api {

/// The one for groups and plans that ask for none first.
std::span<const backends::Backend* const> compiled_backends();

/// @param name  "auto" (MEGAMOE_BACKEND, else cpu), or a backend's name
/// Errors: kInvalidArgument for an unknown name (lists the known ones); kNotSupported where this build lacks it.
Result<const backends::Backend*> find_backend(const std::string& name);

/// The same, and it can run on this machine. Errors: also kNotSupported with the backend's reason.
Result<const backends::Backend*> choose_backend(const std::string& name);

/// The backend for a group: "auto" (without MEGAMOE_BACKEND) follows the group's memory, a named one must fit it.
/// Errors: also kInvalidArgument where it does not.
Result<const backends::Backend*> choose_backend(const std::string& name, const SymmetricMemory& group);

}  // namespace megamoe::api
