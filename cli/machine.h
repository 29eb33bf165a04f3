// What this machine is: read from the kernel's files, without guessing where a file is missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megamoe::cli {

struct Machine {
  std::string cpu_model = "unknown";
  std::vector<std::string> cpu_features;  ///< Of those that matter here.
  uint32_t num_cores = 0;                 ///< Usable by this process.
  std::optional<uint64_t> memory_bytes, available_bytes;
  std::optional<uint64_t> memlock_bytes, max_open_files;  ///< Nothing: unlimited.
  std::optional<uint64_t> shm_bytes, shm_free_bytes;      ///< /dev/shm; nothing: not there.
};

Machine describe_machine();

/// Highest rates of this machine, measured now on `num_threads` threads.
struct MachineRates {
  double read_bytes_per_s = 0;  ///< From memory, far beyond the caches.
  double fma_per_s = 0;         ///< FP32 multiply-adds in registers.
};
MachineRates measure_machine(uint32_t num_threads);

}  // namespace megamoe::cli
