// The fixture of tests that run at each SIMD level, and the helpers they share.
#pragma once

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/kernels/kernels.h"

namespace megamoe::cpu {

class LevelTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    const std::vector<std::string_view> usable = usable_simd_levels();
    if (std::find(usable.begin(), usable.end(), GetParam()) == usable.end()) {
      GTEST_SKIP() << "this CPU cannot run the SIMD level " << GetParam();
    }
    ASSERT_TRUE(set_simd_level(GetParam()).ok());
  }
  void TearDown() override { ASSERT_TRUE(set_simd_level("auto").ok()); }
};

inline std::string level_name(const ::testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}

#define MEGAMOE_EVERY_LEVEL(Suite) \
  INSTANTIATE_TEST_SUITE_P(EveryLevel, Suite, ::testing::Values("scalar", "sse4", "avx2", "avx512"), level_name)

/// Flush to zero, denormals are zero, round up: what a caller may have set, and no kernel may notice.
class HostileFpState {
 public:
  HostileFpState() { _mm_setcsr(kHostile); }
  ~HostileFpState() { _mm_setcsr(caller_); }
  /// The state is what the constructor set, but for the sticky flags.
  bool is_intact() const { return (_mm_getcsr() & ~0x3fu) == kHostile; }

 private:
  static constexpr unsigned kHostile = 0x1f80 | 0x8000 | 0x0040 | 0x4000;
  const unsigned caller_ = _mm_getcsr();
};

inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), [](float value) { return bits_of(value); });
  return bits;
}

/// 64-byte aligned storage for GemmBlock::scratch.
class AlignedScratch {
 public:
  explicit AlignedScratch(size_t bytes) : storage_(bytes + kScratchAlignment) {}
  void* data() {
    const size_t misalignment = reinterpret_cast<uintptr_t>(storage_.data()) % kScratchAlignment;
    return storage_.data() + (kScratchAlignment - misalignment) % kScratchAlignment;
  }

 private:
  std::vector<unsigned char> storage_;
};

}  // namespace megamoe::cpu
