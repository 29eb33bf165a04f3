// The only place in the library that reads the environment for its own switches.
#include "api/options.h"

#include <fmt/format.h>

#include <cstdlib>

#include "backends/cpu/kernels/kernels.h"

namespace megamoe::api {
namespace {

constexpr EnvironmentOption kOptions[] = {
    {"MEGAMOE_BACKEND", "cpu, cuda", "by the group's memory", "Forces the backend of layers created with \"auto\"."},
    {"MEGAMOE_SIMD", "scalar, sse4, avx2, avx512, auto", "auto", "Forces the CPU backend's instruction level."},
    {"MEGAMOE_RENDEZVOUS", "a directory", "derived from the launcher", "Where process ranks meet."},
};

}  // namespace

std::span<const EnvironmentOption> environment_options() { return kOptions; }

std::optional<std::string> environment_value(const char* name) {
  const char* value =
      std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing in the library writes the environment
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

Status apply_environment() {
  const std::optional<std::string> level = environment_value("MEGAMOE_SIMD");
  if (!level) return {};
  const Status status = cpu::set_simd_level(*level);
  if (status.ok()) return status;
  return {status.code(), fmt::format("environment variable MEGAMOE_SIMD: {}", status.message())};
}

}  // namespace megamoe::api
