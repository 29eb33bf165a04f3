// Forcing the CPU backend's instruction level for the length of a test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "backends/cpu/kernels/kernels.h"

namespace megamoe::test {

inline bool is_usable(std::string_view level) {
  const auto levels = cpu::usable_simd_levels();
  return std::find(levels.begin(), levels.end(), level) != levels.end();
}

inline std::string parameter_label(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

/// Gives the former level back when it ends.
class ScopedSimdLevel {
 public:
  ScopedSimdLevel() : before_(cpu::simd_level()) {}
  ~ScopedSimdLevel() { (void)cpu::set_simd_level(before_); }
  ScopedSimdLevel(const ScopedSimdLevel&) = delete;
  ScopedSimdLevel& operator=(const ScopedSimdLevel&) = delete;

  Status set(std::string_view level) { return cpu::set_simd_level(level); }

 private:
  const std::string before_;
};

}  // namespace megamoe::test
