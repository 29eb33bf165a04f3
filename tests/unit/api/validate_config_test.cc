// Every sentence with which a configuration is refused, and the edges that are accepted.
#include <cmath>
#include <functional>
#include <limits>

#include "api/validate.h"
#include "support/layer_group.h"
#include "unit/api/refusal.h"

namespace megamoe::test {
namespace {

LayerConfig good() { return small_config({256, 192, 8, 2}, 16); }

void expect_refused(const std::function<void(LayerConfig&)>& spoil, const std::string& sentence,
                    uint32_t num_ranks = 2) {
  LayerConfig config = good();
  spoil(config);
  expect_refusal(api::validate_config(config, num_ranks), Code::kInvalidArgument, "moe_layer.create: " + sentence);
}

void expect_accepted(const std::function<void(LayerConfig&)>& change, uint32_t num_ranks = 2) {
  LayerConfig config = good();
  change(config);
  expect_ok(api::validate_config(config, num_ranks));
}

TEST(ValidateConfig, RefusesHiddenOffTheScaleBlocks) {
  expect_refused([](auto& c) { c.shape.hidden = 7100; },
                 "hidden must be a positive multiple of 128 (one FP8 scale block), got 7100; pad it to 7168");
  expect_refused([](auto& c) { c.shape.hidden = 0; },
                 "hidden must be a positive multiple of 128 (one FP8 scale block), got 0; pad it to 128");
  expect_refused([](auto& c) { c.shape.hidden = (1u << 24) + 128; },
                 "hidden and intermediate must be at most 16777216, got 16777344 and 192");
  expect_accepted([](auto& c) { c.shape.hidden = 128; });
}

TEST(ValidateConfig, RefusesIntermediateOffHalfAScaleBlock) {
  expect_refused([](auto& c) { c.shape.intermediate = 200; },
                 "intermediate must be a positive multiple of 64 (half a scale block), got 200; pad it to 256 with "
                 "zeros");
  expect_refused([](auto& c) { c.shape.intermediate = 0; },
                 "intermediate must be a positive multiple of 64 (half a scale block), got 0; pad it to 64 with zeros");
  expect_accepted([](auto& c) { c.shape.intermediate = 64; });
}

TEST(ValidateConfig, RefusesExpertCountsOutOfRange) {
  expect_refused([](auto& c) { c.shape.num_experts = 0; }, "num_experts must be between 1 and 1024, got 0");
  expect_refused([](auto& c) { c.shape.num_experts = 1025; }, "num_experts must be between 1 and 1024, got 1025");
  expect_accepted([](auto& c) { c.shape.num_experts = 1024; });
}

TEST(ValidateConfig, RefusesTopKOutOfRange) {
  expect_refused([](auto& c) { c.shape.top_k = 0; }, "top_k must be between 1 and 32, got 0");
  expect_refused([](auto& c) { c.shape.top_k = 33; }, "top_k must be between 1 and 32, got 33");
  expect_refused([](auto& c) { c.shape.top_k = 9; }, "top_k must not exceed num_experts (8), got 9");
  expect_accepted([](auto& c) { c.shape.top_k = 8; });
}

TEST(ValidateConfig, CountsSharedExpertsIn) {
  expect_refused([](auto& c) { c.shape.num_experts = 1020, c.num_shared_experts = 3; },
                 "num_experts and num_shared_experts of every rank must be at most 1024 together, got 1020 + 3 x 2 "
                 "ranks = 1026");
  expect_refused(
      [](auto& c) { c.num_shared_experts = UINT32_MAX; },
      "num_experts and num_shared_experts of every rank must be at most 1024 together, got 8 + 4294967295 x 2 "
      "ranks = 8589934598");
  expect_refused([](auto& c) { c.num_shared_experts = 31; },
                 "top_k and num_shared_experts must be at most 32 together, got 2 + 31");
  expect_accepted([](auto& c) { c.num_shared_experts = 30; });
}

TEST(ValidateConfig, RefusesOtherExtrasOutOfRange) {
  expect_refused([](auto& c) { c.routed_scaling = std::numeric_limits<float>::quiet_NaN(); },
                 "routed_scaling must be finite, got nan; 1 leaves the weights as they are");
  expect_accepted([](auto& c) { c.routed_scaling = 0; });
  expect_refused([](auto& c) { c.num_logical_experts = 1025; },
                 "num_logical_experts must be at most 1024, got 1025; 0 means that topk_ids name physical experts");
  expect_refused([](auto& c) { c.num_logical_experts = 1; }, "top_k must not exceed num_logical_experts (1), got 2");
  expect_accepted([](auto& c) { c.num_logical_experts = 20; });
}

TEST(ValidateConfig, RefusesRankCountsThatDoNotFit) {
  expect_refused([](auto&) {}, "the number of ranks must be between 1 and 72, got 0", 0);
  expect_refused([](auto&) {}, "the number of ranks must be between 1 and 72, got 73", 73);
  expect_refused([](auto&) {},
                 "num_experts must be divisible by the number of ranks, got 8 experts on 3 ranks; usable rank counts: "
                 "1, 2, 4, 8",
                 3);
  expect_accepted([](auto& c) { c.shape.num_experts = 72; }, 72);
}

TEST(ValidateConfig, RefusesAnEmptyCapacityAndTimeout) {
  expect_refused([](auto& c) { c.max_tokens_per_rank = 0; }, "max_tokens_per_rank must be at least 1, got 0");
  expect_refused([](auto& c) { c.timeout_ns = 0; }, "timeout_ns must be greater than 0, got 0");
}

TEST(ValidateConfig, RefusesClampsThatAreNotPositive) {
  for (const float clamp : {0.0f, -1.0f})
    expect_refused([=](auto& c) { c.swiglu_clamp = clamp; }, "swiglu_clamp must be greater than 0, got " +
                                                                 std::string(clamp == 0 ? "0" : "-1") +
                                                                 "; leave it unset for no clamp");
  expect_refused([](auto& c) { c.swiglu_clamp = std::nanf(""); },
                 "swiglu_clamp must be greater than 0, got nan; leave it unset for no clamp");
  expect_accepted([](auto& c) { c.swiglu_clamp = std::numeric_limits<float>::infinity(); });
  expect_accepted([](auto& c) { c.swiglu_clamp = std::numeric_limits<float>::denorm_min(); });
}

TEST(ValidateConfig, RefusesAbsurdThreadCounts) {
  expect_refused([](auto& c) { c.num_threads = 1025; }, "num_threads must be at most 1024, got 1025; 0 chooses");
}

}  // namespace
}  // namespace megamoe::test
