// Choosing a SIMD level: every usable one by name, the fastest by default, and errors that list what is possible.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/kernels/cpu_features.h"
#include "backends/cpu/kernels/kernels.h"

namespace megamoe::cpu {
namespace {

using ::testing::HasSubstr;

TEST(SimdLevel, EachUsableLevelCanBeChosen) {
  const std::vector<std::string_view> usable = usable_simd_levels();
  ASSERT_FALSE(usable.empty());
  EXPECT_EQ(usable.front(), "scalar");
  for (const std::string_view level : usable) {
    ASSERT_TRUE(set_simd_level(level).ok()) << level;
    EXPECT_EQ(simd_level(), level);
  }
  ASSERT_TRUE(set_simd_level("auto").ok());
  EXPECT_EQ(simd_level(), usable.back());
}

TEST(SimdLevel, AnUnknownNameIsRefusedWithTheUsableOnes) {
  const std::string before(simd_level());
  const Status status = set_simd_level("avx1024");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("cpu.set_simd_level"));
  EXPECT_THAT(status.message(), HasSubstr("got \"avx1024\""));
  for (const std::string_view level : usable_simd_levels())
    EXPECT_THAT(status.message(), HasSubstr(std::string(level)));
  EXPECT_EQ(set_simd_level("").code(), Code::kInvalidArgument);
  EXPECT_EQ(set_simd_level("AVX2").code(), Code::kInvalidArgument);
  EXPECT_EQ(simd_level(), before);
}

TEST(SimdLevel, AKnownLevelThatThisCpuLacksIsNotSupported) {
  const std::vector<std::string_view> usable = usable_simd_levels();
  for (const std::string_view level : {"scalar", "sse4", "avx2", "avx512"}) {
    const bool is_usable = std::find(usable.begin(), usable.end(), level) != usable.end();
    EXPECT_EQ(set_simd_level(level).code(), is_usable ? Code::kOk : Code::kNotSupported) << level;
  }
  ASSERT_TRUE(set_simd_level("auto").ok());
}

TEST(SimdLevel, TheCpuIsReadAsHighwayReadsIt) {
  const auto supported = hwy::SupportedTargets();
  EXPECT_TRUE(cpu_supports(SimdLevel::kScalar));
  EXPECT_EQ(cpu_supports(SimdLevel::kSse4), (supported & HWY_SSE4) != 0);
  EXPECT_EQ(cpu_supports(SimdLevel::kAvx2), (supported & HWY_AVX2) != 0);
  EXPECT_EQ(cpu_supports(SimdLevel::kAvx512), (supported & HWY_AVX3) != 0);
}

}  // namespace
}  // namespace megamoe::cpu
