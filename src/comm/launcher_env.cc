// Which rank of which group this process is, from the variables of torchrun or mpirun.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/process_group.h"

namespace megamoe::comm {
namespace {

struct Variable {
  const char* name;
  bool is_required;
};

constexpr Variable kTorchrun[] = {
    {"RANK", true}, {"WORLD_SIZE", true}, {"LOCAL_RANK", true}, {"LOCAL_WORLD_SIZE", true}};
constexpr Variable kMpirun[] = {{"OMPI_COMM_WORLD_RANK", true},
                                {"OMPI_COMM_WORLD_SIZE", true},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", true},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", false}};
constexpr const char* kNaming[] = {"MASTER_ADDR",         "MASTER_PORT",
                                   "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                   "PMIX_NAMESPACE",      "OMPI_MCA_ess_base_jobid"};

Status refuse(std::string text) {
  return {Code::kInvalidArgument, fmt::format("process_group_from_environment: {}", text)};
}

/// Fit for a message: control bytes replaced, long values cut.
std::string quoted(std::string_view value) {
  std::string text = "'";
  for (const char c : value.substr(0, 80)) text += c < ' ' || c == 0x7f ? '?' : c;
  return text + (value.size() > 80 ? "...'" : "'");
}

Result<uint32_t> parse(const char* name, uint32_t limit) {
  const std::string_view text = std::getenv(name);
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value > limit)
    return refuse(fmt::format("{} must be a whole number from 0 to {}, got {}", name, limit, quoted(text)));
  return value;
}

/// The parent process, told apart from later ones of the same number.
std::string parent_name() {
  const pid_t parent = ::getppid();
  std::ifstream file(fmt::format("/proc/{}/stat", parent));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // After the command in brackets: state, then fields 4 and on; field 22 is the start time.
  const size_t bracket = text.rfind(')');
  std::string start;
  if (bracket != std::string::npos) {
    size_t begin = bracket + 2;
    for (int field = 3; field < 22 && begin != std::string::npos; ++field) {
      begin = text.find(' ', begin);
      if (begin != std::string::npos) ++begin;
    }
    if (begin != std::string::npos) start = text.substr(begin, text.find(' ', begin) - begin);
  }
  return fmt::format("parent={}@{}", parent, start);
}

Result<std::string> group_name(std::string_view launcher) {
  std::string name(launcher);
  bool is_named = false;
  for (const char* variable : kNaming) {
    const char* value = std::getenv(variable);
    if (value == nullptr) continue;
    is_named = is_named || std::string_view(variable) != "TORCHELASTIC_RESTART_COUNT";
    name += fmt::format("|{}={}", variable, value);
  }
  if (std::getenv("MASTER_PORT") != nullptr) {
    const Result<uint32_t> port = parse("MASTER_PORT", 65535);
    if (!port.ok()) return port.status();
  }
  if (!is_named) name += "|" + parent_name();
  return name;
}

template <size_t kCount>
Result<ProcessGroupOptions> read(std::string_view launcher, const Variable (&variables)[kCount]) {
  std::string missing;
  for (const Variable& variable : variables) {
    if (!variable.is_required || std::getenv(variable.name) != nullptr) continue;
    missing += missing.empty() ? variable.name : fmt::format(", {}", variable.name);
  }
  if (!missing.empty())
    return refuse(
        fmt::format("the variables of {} must be set together, {} is missing; start all ranks by one "
                    "launcher, or unset the others",
                    launcher, missing));
  uint32_t values[kCount] = {};
  for (size_t i = 0; i < kCount; ++i) {
    if (std::getenv(variables[i].name) == nullptr) continue;
    const Result<uint32_t> value = parse(variables[i].name, UINT32_MAX);
    if (!value.ok()) return value.status();
    values[i] = value.value();
  }
  const auto [rank, world_size, local_rank, local_world_size] = values;
  const bool has_local_size = std::getenv(variables[3].name) != nullptr;
  if (world_size < 1 || world_size > kMaxRanks)
    return refuse(fmt::format("{} must be 1 to {}, got {}", variables[1].name, kMaxRanks, world_size));
  if (has_local_size && world_size != local_world_size)
    return Status{
        Code::kNotSupported,
        fmt::format("process_group_from_environment: {} must equal {}, since all ranks share one host's memory, "
                    "got {} and {}; start all ranks on one host",
                    variables[1].name, variables[3].name, world_size, local_world_size)};
  if (rank >= world_size)
    return refuse(
        fmt::format("{} must be below {} {}, got {}", variables[0].name, variables[1].name, world_size, rank));
  if (local_rank != rank)
    return refuse(
        fmt::format("{} must equal {}, since all ranks are on one host, got {} and {}; start all ranks on one "
                    "host",
                    variables[2].name, variables[0].name, local_rank, rank));
  ProcessGroupOptions options;
  options.rank = rank;
  options.num_ranks = world_size;
  Result<std::string> name = group_name(launcher);
  if (!name.ok()) return name.status();
  options.name = std::move(name).value();
  if (const char* folder = std::getenv("MEGAMOE_RENDEZVOUS")) {
    if (folder[0] != '/')
      return refuse(fmt::format("MEGAMOE_RENDEZVOUS must be an absolute path, got {}", quoted(folder)));
    options.rendezvous_dir = folder;
  }
  return options;
}

template <size_t kCount>
bool any_set(const Variable (&variables)[kCount]) {
  for (const Variable& variable : variables)
    if (std::getenv(variable.name) != nullptr) return true;
  return false;
}

}  // namespace
}  // namespace megamoe::comm

namespace megamoe {

Result<ProcessGroupOptions> process_group_from_environment() {
  if (comm::any_set(comm::kTorchrun)) return comm::read("torchrun", comm::kTorchrun);
  if (comm::any_set(comm::kMpirun)) return comm::read("mpirun", comm::kMpirun);
  return Status{
      Code::kNotSupported,
      "process_group_from_environment: a launcher must have set RANK, WORLD_SIZE, LOCAL_RANK and "
      "LOCAL_WORLD_SIZE (torchrun) or OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK (mpirun), got none of them"};
}

}  // namespace megamoe
