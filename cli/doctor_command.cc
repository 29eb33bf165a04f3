// `megamoe doctor`: what this machine offers to the library, and which switches are set.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "api/machine.h"
#include "api/options.h"
#include "cli/commands.h"
#include "cli/gpu_probe.h"
#include "cli/machine.h"
#include "cli/text_format.h"

namespace megamoe::cli {
namespace {

std::string bytes_or(const std::optional<uint64_t>& bytes, std::string_view otherwise) {
  return bytes ? bytes_text(*bytes) : std::string(otherwise);
}

void print_gpus(const GpuReport& gpus) {
  if (!gpus.problem.empty()) {
    fmt::print("gpus       {}\n", gpus.problem);
    return;
  }
  fmt::print("gpus       {}, driver for CUDA {}\n", gpus.gpus.size(), gpus.driver);
  for (size_t i = 0; i < gpus.gpus.size(); ++i) {
    const Gpu& gpu = gpus.gpus[i];
    fmt::print("  {}: {}, compute capability {}.{}, {} SMs, {}, {}\n", i, gpu.name, gpu.compute_major,
               gpu.compute_minor, gpu.num_sms, bytes_text(gpu.memory_bytes), gpu.uuid);
  }
  if (gpus.gpus.size() < 2) return;
  fmt::print("peers      row can read and write column's memory\n");
  for (size_t from = 0; from < gpus.peer_access.size(); ++from) {
    std::string row;
    for (const bool can_access : gpus.peer_access[from]) row += can_access ? " yes" : "  no";
    fmt::print("  {}:{}\n", from, row);
  }
}

void print_doctor(const Machine& machine, const GpuReport& gpus) {
  fmt::print("version    {}\n", MEGAMOE_VERSION);
  fmt::print("cpu        {}, {} cores usable\n", machine.cpu_model, machine.num_cores);
  fmt::print("features   {}\n", fmt::join(machine.cpu_features, " "));
  fmt::print("simd       {} in use; this CPU can run {}\n", api::simd_level(),
             fmt::join(api::usable_simd_levels(), ", "));
  fmt::print("memory     {}, {} available\n", bytes_or(machine.memory_bytes, "unknown"),
             bytes_or(machine.available_bytes, "unknown"));
  fmt::print("limits     locked memory {}, open files {}\n", bytes_or(machine.memlock_bytes, "unlimited"),
             machine.max_open_files ? fmt::format("{}", *machine.max_open_files) : "unlimited");
  fmt::print("/dev/shm   {}\n", machine.shm_bytes ? fmt::format("{}, {} free", bytes_text(*machine.shm_bytes),
                                                                bytes_text(*machine.shm_free_bytes))
                                                  : "not there");
  print_gpus(gpus);
  fmt::print("environment\n");
  for (const api::EnvironmentOption& option : api::environment_options()) {
    const auto value = api::environment_value(option.name);
    fmt::print("  {}={}\n    {} Values: {}. Default: {}.\n", option.name, value.value_or("(not set)"), option.meaning,
               option.values, option.default_value);
  }
}

void write_optional(JsonWriter& json, std::string_view key, const std::optional<uint64_t>& value) {
  json.key(key);
  value ? json.whole(*value) : json.null();
}

void write_gpus(JsonWriter& json, const GpuReport& gpus) {
  json.key("gpu").begin_object();
  json.key("problem");
  gpus.problem.empty() ? json.null() : json.text(gpus.problem);
  json.key("driver_cuda");
  gpus.driver.empty() ? json.null() : json.text(gpus.driver);
  json.key("devices").begin_array();
  for (const Gpu& gpu : gpus.gpus) {
    json.begin_object();
    json.key("name").text(gpu.name);
    json.key("uuid").text(gpu.uuid);
    json.key("compute_capability").text(fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor));
    json.key("num_sms").whole(gpu.num_sms);
    json.key("memory_bytes").whole(gpu.memory_bytes);
    json.end_object();
  }
  json.end_array();
  json.key("peer_access").begin_array();
  for (const auto& row : gpus.peer_access) {
    json.begin_array();
    for (const bool can_access : row) json.boolean(can_access);
    json.end_array();
  }
  json.end_array().end_object();
}

void print_doctor_json(const Machine& machine, const GpuReport& gpus) {
  JsonWriter json;
  begin_answer(json, "doctor", Verdict::kOk);
  json.key("cpu").begin_object();
  json.key("model").text(machine.cpu_model);
  json.key("num_cores").whole(machine.num_cores);
  json.key("features").begin_array();
  for (const std::string& feature : machine.cpu_features) json.text(feature);
  json.end_array();
  json.key("simd").text(api::simd_level());
  json.key("usable_simd").begin_array();
  for (const std::string_view level : api::usable_simd_levels()) json.text(level);
  json.end_array().end_object();
  json.key("memory").begin_object();
  write_optional(json, "total_bytes", machine.memory_bytes);
  write_optional(json, "available_bytes", machine.available_bytes);
  write_optional(json, "shm_bytes", machine.shm_bytes);
  write_optional(json, "shm_free_bytes", machine.shm_free_bytes);
  json.end_object();
  json.key("limits").begin_object();  // null: unlimited
  write_optional(json, "memlock_bytes", machine.memlock_bytes);
  write_optional(json, "open_files", machine.max_open_files);
  json.end_object();
  write_gpus(json, gpus);
  json.key("environment").begin_array();
  for (const api::EnvironmentOption& option : api::environment_options()) {
    json.begin_object();
    json.key("name").text(option.name);
    json.key("value");
    const auto value = api::environment_value(option.name);
    value ? json.text(*value) : json.null();
    json.key("values").text(option.values);
    json.key("default").text(option.default_value);
    json.key("meaning").text(option.meaning);
    json.end_object();
  }
  json.end_array().end_object();
  print_json(json);
}

}  // namespace

Result<Verdict> doctor_command(const Arguments& arguments) {
  MEGAMOE_RETURN_IF_ERROR(api::apply_environment());
  const Machine machine = describe_machine();
  const GpuReport gpus = probe_gpus();
  if (arguments.json) {
    print_doctor_json(machine, gpus);
  } else {
    print_doctor(machine, gpus);
  }
  return Verdict::kOk;
}

}  // namespace megamoe::cli
