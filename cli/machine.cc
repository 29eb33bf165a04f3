// Readers of /proc and limits.
#include "cli/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

namespace megamoe::cli {
namespace {

constexpr std::array<std::string_view, 13> kFeatures = {
    "sse4_1",   "avx",         "avx2",        "fma",      "f16c",     "avx512f", "avx512bw",
    "avx512vl", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"};

/// The text after "key : " or "key:" of the first line that begins with `key`.
std::string value_of(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::optional<uint64_t> meminfo_bytes(std::string_view key) {
  const std::string text = value_of("/proc/meminfo", key);
  if (text.empty()) return std::nullopt;
  uint64_t kib = 0;
  std::istringstream(text) >> kib;
  return kib * 1024;
}

std::optional<uint64_t> limit(decltype(RLIMIT_NOFILE) which) {
  rlimit value{};
  if (getrlimit(which, &value) != 0 || value.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return value.rlim_cur;
}

uint32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<uint32_t>(CPU_COUNT(&set));
  return std::max(std::thread::hardware_concurrency(), 1U);
}

}  // namespace

Machine describe_machine() {
  Machine machine;
  if (std::string model = value_of("/proc/cpuinfo", "model name"); !model.empty()) machine.cpu_model = std::move(model);
  std::istringstream flags(value_of("/proc/cpuinfo", "flags"));
  for (std::string flag; flags >> flag;) {
    if (std::find(kFeatures.begin(), kFeatures.end(), flag) != kFeatures.end()) machine.cpu_features.push_back(flag);
  }
  machine.num_cores = usable_cores();
  machine.memory_bytes = meminfo_bytes("MemTotal:");
  machine.available_bytes = meminfo_bytes("MemAvailable:");
  machine.memlock_bytes = limit(RLIMIT_MEMLOCK);
  machine.max_open_files = limit(RLIMIT_NOFILE);
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    machine.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
    machine.shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
  }
  return machine;
}

}  // namespace megamoe::cli
