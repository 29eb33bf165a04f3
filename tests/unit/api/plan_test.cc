// What plan() says is what is allocated: regions in order, inside the total, sizes that grow as they should.
#include <gmock/gmock.h>

#include "support/layer_group.h"
#include "unit/api/refusal.h"

namespace megamoe::test {
namespace {

LayerPlan plan_of(const LayerConfig& config, uint32_t num_ranks) {
  const Result<LayerPlan> plan = MoeLayer::plan(config, num_ranks);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? plan.value() : LayerPlan{};
}

uint64_t region_bytes(const LayerPlan& plan, const std::string& name) {
  for (const RegionInfo& region : plan.regions)
    if (region.name == name) return region.bytes;
  ADD_FAILURE() << "no region " << name;
  return 0;
}

TEST(Plan, RegionsLieInOrderAndInsideTheTotal) {
  const LayerPlan plan = plan_of(small_config({7168, 2048, 256, 8}, 8192), 8);
  uint64_t end = 0;
  for (const RegionInfo& region : plan.regions) {
    EXPECT_GE(region.offset_bytes, end) << region.name;
    EXPECT_THAT(region.reach, ::testing::AnyOf("local", "peers write", "peers read")) << region.name;
    end = region.offset_bytes + region.bytes;
  }
  EXPECT_LE(end, plan.workspace_bytes);
  EXPECT_LT(plan.workspace_bytes - end, 1024u);
}

TEST(Plan, SizesFollowFromTheShape) {
  const LayerPlan plan = plan_of(small_config({7168, 2048, 256, 8}, 8192), 8);
  EXPECT_EQ(region_bytes(plan, "input_codes"), uint64_t{8192} * 7168);
  EXPECT_EQ(region_bytes(plan, "input_scales"), uint64_t{8192} * 56 * 4);
  EXPECT_EQ(region_bytes(plan, "combine_rows"), uint64_t{8} * 8192 * 7168 * 2);
  EXPECT_EQ(region_bytes(plan, "slot_list"), uint64_t{8192} * 8 * 8);
}

TEST(Plan, IsWhatCreationAllocates) {
  const MoeShape shape{256, 192, 8, 2};
  const TestWeights weights = zero_weights(shape);
  const LayerConfig config = small_config(shape, 100);
  const LayerPlan plan = plan_of(config, 2);
  LayerGroup group(config, 2, weights);
  expect_all_ok(group.created());
  EXPECT_EQ(group.layer(1).plan().workspace_bytes, plan.workspace_bytes);
  EXPECT_EQ(group.layer(1).plan().regions.size(), plan.regions.size());
}

TEST(Plan, RefusesSizesOutsideTheCpuBackend) {
  const auto refused = [](const std::function<void(LayerConfig&)>& change, const std::string& sentence) {
    LayerConfig config = small_config({256, 128, 8, 2}, 64);
    change(config);
    expect_refusal(MoeLayer::plan(config, 2).status(), Code::kInvalidArgument, sentence);
  };
  refused([](auto& c) { c.block_rows = 7; },
          "moe_layer.create: block_rows must be between 8 and 256, got 7; 0 chooses");
  refused([](auto& c) { c.block_rows = 257; },
          "moe_layer.create: block_rows must be between 8 and 256, got 257; 0 chooses");
  EXPECT_THAT(MoeLayer::plan(
                  [] {
                    LayerConfig config = small_config({256, 128, 8, 2}, 64);
                    config.unit_blocks = 4;
                    config.act_ring_blocks = 3;
                    return config;
                  }(),
                  2)
                  .status()
                  .message(),
              ::testing::HasSubstr("ring blocks must be between 4 and "));
}

TEST(Create, WithoutAGroupIsRefused) {
  expect_refusal(MoeLayer::create(small_config({256, 128, 8, 2}, 64), nullptr).status(), Code::kInvalidArgument,
                 "moe_layer.create: group must be given, got a null pointer; see make_thread_group");
}

}  // namespace
}  // namespace megamoe::test
