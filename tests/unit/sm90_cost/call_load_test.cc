// Floors of a call: counted by hand.
#include "bench/call_load.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace megamoe::bench {
namespace {

constexpr MoeShape kShape{1024, 512, 8, 2};

TEST(CallLoad, CountsExpertsOnceAndRowsEach) {
  GpuRates rates;
  rates.read_bytes_per_s = 3e6 * 1024 * 512;  // an expert a microsecond
  rates.gemm_flops_per_s = 6e6 * 1024 * 512;  // a row a microsecond
  rates.gemm_depth_lost = 0;
  const std::array<int32_t, 1> gpus = {0};
  const std::vector<int32_t> ids = {0, 3, 3, -1, 0, 5};
  const CallLoad load = load_of(kShape, gpus, ids, rates);
  EXPECT_DOUBLE_EQ(load.weights_us, 3);
  EXPECT_DOUBLE_EQ(load.gemm_us, 5);
  EXPECT_DOUBLE_EQ(load.rows_max_over_mean, 1);
}

TEST(CallLoad, IsThatOfTheBusiestGpu) {
  GpuRates rates;
  rates.read_bytes_per_s = 3e6 * 1024 * 512;
  rates.gemm_flops_per_s = 6e6 * 1024 * 512;
  rates.gemm_depth_lost = 0;
  const std::vector<int32_t> ids = {0, 1, 1, 1, 2, 4};  // ranks 0 and 1 own experts 0 to 3 and 4 to 7
  const std::array<int32_t, 2> apart = {0, 1}, shared = {0, 0};
  EXPECT_DOUBLE_EQ(load_of(kShape, apart, ids, rates).weights_us, 3);
  EXPECT_DOUBLE_EQ(load_of(kShape, apart, ids, rates).gemm_us, 5);
  EXPECT_DOUBLE_EQ(load_of(kShape, shared, ids, rates).weights_us, 4);
  EXPECT_DOUBLE_EQ(load_of(kShape, shared, ids, rates).gemm_us, 6);
  EXPECT_DOUBLE_EQ(load_of(kShape, apart, ids, rates).rows_max_over_mean, 5.0 / 3);
}

TEST(CallLoad, HasTheKnownFloorsOfTheSlices) {
  std::vector<int32_t> ids(size_t{8192} * 6);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 48);
  const std::array<int32_t, 1> gpus = {0};
  const CallLoad load = load_of({7168, 3072, 48, 6}, gpus, ids);
  EXPECT_NEAR(load.weights_us, 711, 1);
  EXPECT_NEAR(load.gemm_us, 4800, 0.02 * 4800);
}

}  // namespace
}  // namespace megamoe::bench
