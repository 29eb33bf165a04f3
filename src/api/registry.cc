// The table of compiled backends.
#include "api/registry.h"

#include <fmt/format.h>

#include "api/options.h"
#include "backends/cpu/backend.h"
#if MEGAMOE_WITH_SM90
#include "backends/sm90/backend.h"
#endif

namespace megamoe::api {
namespace {

/// The name that "auto" stands for where the environment names none.
std::string resolve(const std::string& name, const char* fallback) {
  return name == "auto" ? environment_value("MEGAMOE_BACKEND").value_or(fallback) : name;
}

Device memory_of(const backends::Backend& backend) {
  return backend.device_memory() == nullptr ? Device::kCpu : backend.device_memory()->device();
}

}  // namespace

std::span<const backends::Backend* const> compiled_backends() {
  static const backends::Backend* const kBackends[] = {
    &cpu::backend(),
#if MEGAMOE_WITH_SM90
    &sm90::backend(),
#endif
  };
  return kBackends;
}

Result<const backends::Backend*> find_backend(const std::string& name) {
  const std::string wanted = resolve(name, "cpu");
  std::string known;
  for (const backends::Backend* backend : compiled_backends()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", backend->name());
    if (wanted == backend->name()) return backend;
  }
  if (wanted == "cuda")
    return Status{Code::kNotSupported,
                  "moe_layer.create: backend cuda needs a build with CUDA, got one without; configure with "
                  "-DMEGAMOE_CUDA=ON, or use backend cpu"};
  return Status{Code::kInvalidArgument,
                fmt::format("moe_layer.create: backend must be one of auto, {}, got \"{}\"", known, wanted)};
}

Result<const backends::Backend*> choose_backend(const std::string& name) {
  Result<const backends::Backend*> found = find_backend(name);
  if (!found.ok()) return found;
  if (const Status status = found.value()->available(); !status.ok()) return status;
  return found;
}

Result<const backends::Backend*> choose_backend(const std::string& name, const SymmetricMemory& group) {
  const bool on_gpu = group.device() == Device::kCuda;
  Result<const backends::Backend*> found = find_backend(resolve(name, on_gpu ? "cuda" : "cpu"));
  if (!found.ok()) return found;
  const backends::Backend& backend = *found.value();
  if (memory_of(backend) != group.device()) {
    return Status{Code::kInvalidArgument,
                  fmt::format("moe_layer.create: backend {} needs a group with memory {}, got transport \"{}\" with "
                              "memory {}; {}",
                              backend.name(), on_gpu ? "of the host" : "on a GPU", group.transport(),
                              on_gpu ? "on a GPU" : "of the host",
                              on_gpu ? "use make_thread_group or join_process_group, or backend cuda"
                                     : "use make_cuda_thread_group or join_cuda_process_group, or backend cpu")};
  }
  if (const Status status = backend.available(group.device_index()); !status.ok()) return status;
  return found;
}

}  // namespace megamoe::api
