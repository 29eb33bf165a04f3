// The table of compiled backends.
#include "api/registry.h"

#include <fmt/format.h>

#include "api/options.h"
#include "backends/cpu/backend.h"

namespace megamoe::api {

std::span<const backends::Backend* const> compiled_backends() {
  static const backends::Backend* const kBackends[] = {
      &cpu::backend(),
  };
  return kBackends;
}

Result<const backends::Backend*> choose_backend(const std::string& name) {
  const std::string wanted = name == "auto" ? environment_value("MEGAMOE_BACKEND").value_or("auto") : name;
  std::string known;
  for (const backends::Backend* backend : compiled_backends()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", backend->name());
    if (wanted == "auto" && backend->available().ok()) return backend;
    if (wanted != backend->name()) continue;
    if (const Status status = backend->available(); !status.ok()) return status;
    return backend;
  }
  if (wanted == "cuda")
    return Status{
        Code::kNotSupported,
        "moe_layer.create: backend cuda is not selectable in this version (its kernel runs behind the backend "
        "interface only); use backend cpu"};
  return Status{Code::kInvalidArgument,
                fmt::format("moe_layer.create: backend must be one of auto, {}, got \"{}\"", known, wanted)};
}

}  // namespace megamoe::api
