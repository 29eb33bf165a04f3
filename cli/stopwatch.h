// Lap times on the steady clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace megamoe::cli {

/// Nanoseconds of a clock that all processes of this machine share.
inline uint64_t steady_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

class Stopwatch {
 public:
  /// Nanoseconds since the last call, or since construction.
  uint64_t lap_ns() {
    const uint64_t now = steady_ns();
    return now - std::exchange(last_ns_, now);
  }

 private:
  uint64_t last_ns_ = steady_ns();
};

}  // namespace megamoe::cli
