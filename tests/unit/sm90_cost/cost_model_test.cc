// The cost model: within 15% of every measured cold figure, and sane far away from them.
#include "backends/sm90/cost/cost_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "bench/results.h"

namespace megamoe::sm90 {
namespace {

constexpr MoeShape kFlash{4096, 2048, 32, 6}, kPro{7168, 3072, 48, 6};

CallSize call(const MoeShape& shape, uint32_t tokens, uint32_t num_ranks = 1) {
  CallSize size;
  size.shape = shape;
  size.tokens_per_rank = tokens;
  size.num_ranks = num_ranks;
  return size;
}

TEST(CostModel, IsWithin15PercentOfTheMeasuredTable) {
  const auto figures = bench::read_figures(MEGAMOE_SOURCE_DIR "/bench/results/h200.jsonl");
  ASSERT_TRUE(figures.ok()) << figures.status().message();
  int compared = 0;
  for (const bench::Figure& f : figures.value()) {
    if (f.protocol != "cold" || f.input != "fp8" || f.routing != "uniform" || f.num_ranks != 1) continue;
    const double predicted = choose_kernel(call(f.shape, f.tokens_per_rank), f.block_rows).total_us();
    EXPECT_LE(std::abs(predicted / f.median_us - 1), 0.15)
        << f.model << " at " << f.tokens_per_rank << " tokens: measured " << f.median_us << " us, predicted "
        << predicted << " us; fit the constants again (see cost_model.cc)";
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST(CostModel, ChoosesSmallTilesForFewRowsAndLargeOnesForMany) {
  for (const MoeShape& shape : {kFlash, kPro}) {
    EXPECT_EQ(choose_kernel(call(shape, 32), 0).kernel, "m64");
    EXPECT_EQ(choose_kernel(call(shape, 1024), 0).kernel, "m128");
    EXPECT_EQ(choose_kernel(call(shape, 32), 128).kernel, "m128");
    EXPECT_EQ(choose_kernel(call(shape, 1024), 64).kernel, "m64");
  }
}

TEST(CostModel, CountsRowsExpertsAndBytes) {
  const Prediction one = choose_kernel(call(kFlash, 1), 0);
  EXPECT_NEAR(one.experts_hit, 6, 1e-9);  // one token, six distinct experts
  EXPECT_NEAR(one.weight_bytes, 6.0 * 3 * 4096 * 2048, 1);
  const Prediction many = choose_kernel(call(kFlash, 4096), 0);
  EXPECT_NEAR(many.experts_hit, 32, 1e-6);
  EXPECT_NEAR(many.rows_per_expert, 768, 1e-9);
  EXPECT_NEAR(many.weight_bytes, 32.0 * 3 * 4096 * 2048, 1);  // up to 8 blocks of 128 rows share a pass
  EXPECT_EQ(choose_kernel(call(kPro, 128), 0).bound(), "reading weights");
  EXPECT_EQ(choose_kernel(call(kPro, 8192), 0).bound(), "multiplying");
}

TEST(CostModel, NeverGetsMuchFasterWithMoreTokens) {
  for (const MoeShape& shape : {kFlash, kPro, MoeShape{4096, 1536, 128, 8}, MoeShape{128, 64, 1, 1}}) {
    double before = 0;
    for (uint32_t tokens = 1; tokens <= 1U << 20; tokens *= 2) {
      const double us = choose_kernel(call(shape, tokens), 0).total_us();
      ASSERT_TRUE(std::isfinite(us)) << tokens;
      EXPECT_GE(us, before * 0.97) << shape.hidden << " at " << tokens << " tokens";
      before = us;
    }
  }
}

TEST(CostModel, CountsNvlinkBetweenGpus) {
  const MoeShape two_ranks{4096, 2048, 64, 6};
  const Prediction one = choose_kernel(call(kFlash, 2048), 0), two = choose_kernel(call(two_ranks, 2048, 2), 0);
  EXPECT_EQ(one.nvlink_us, 0);
  EXPECT_GT(two.nvlink_us, 200);
  EXPECT_LT(two.nvlink_us, 400);
  EXPECT_GE(two.total_us(), one.total_us() * 0.99);
}

TEST(CostModel, ExplainsItsChoiceWithItsFigures) {
  const CallSize size = call(kFlash, 128);
  const Prediction p = choose_kernel(size, 0);
  const std::string text = explain(size, 0);
  EXPECT_THAT(text, ::testing::StartsWith(fmt::format("{} has the shortest time, predicted {:.0f} us a call (m128 ",
                                                      p.kernel, p.total_us())));
  EXPECT_THAT(text, ::testing::HasSubstr("with 128 tokens on each rank, a GPU of 132 SMs for each, uniform routing: "
                                         "24.0 rows an expert, 32.0 experts of a rank hit."));
  EXPECT_THAT(text, ::testing::HasSubstr("reading 805 MB of weights"));
  EXPECT_THAT(text, ::testing::EndsWith("Bound by reading weights."));
  EXPECT_THAT(explain(size, 128), ::testing::StartsWith("m128 as asked for, predicted "));
}

}  // namespace
}  // namespace megamoe::sm90
