// The clock of all deadlines.
#pragma once

#include <chrono>
#include <cstdint>

namespace megamoe::comm {

inline uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

inline std::chrono::steady_clock::time_point time_point_of(uint64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::nanoseconds(static_cast<int64_t>(ns))));
}

}  // namespace megamoe::comm
