// One rank's part of a layer in one piece: against the parts loaded one by one, for every fixture; and what is refused.
#include "io/moe_block.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/formats/bf16.h"
#include "io_test_util.h"
#include "routing/logits.h"

namespace megamoe::io {
namespace {

using test::TempDir;

std::string fixture(const std::string& name) { return MEGAMOE_SOURCE_DIR "/tests/fixtures/" + name; }

template <class T>
bool equal(const Buffer<T>& a, const Buffer<T>& b) {
  return a.size() == b.size() && std::equal(a.data(), a.data() + a.size(), b.data());
}

/// BF16 tokens [count][hidden].
std::vector<uint16_t> tokens(uint64_t count, uint32_t hidden) {
  std::vector<uint16_t> bits;
  for (uint64_t i = 0; i < count * hidden; ++i) {
    bits.push_back(core::bf16_encode((static_cast<float>(i * 2654435761u % 61) - 30.0f) / 32.0f));
  }
  return bits;
}

class OfFixture : public testing::TestWithParam<std::string> {};

TEST_P(OfFixture, IsTheSumOfItsParts) {
  const std::string folder = fixture(GetParam());
  const auto checkpoint = MoeCheckpoint::open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto shared = checkpoint->load_shared_experts(1);
  const auto router = checkpoint->load_router(1);
  ASSERT_TRUE(shared.ok() && router.ok());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto block = load_moe_block(folder, 1, rank, 2, BlockParts::kAll);
    ASSERT_TRUE(block.ok()) << block.status().message();
    const uint32_t share = checkpoint->config().shape.num_experts / 2;
    const auto experts = checkpoint->load_experts(1, rank * share, (rank + 1) * share);
    ASSERT_TRUE(experts.ok());
    EXPECT_TRUE(equal(block->experts.w13, experts->w13) && equal(block->experts.w2_scale, experts->w2_scale));
    EXPECT_TRUE(equal(block->shared.w13, shared->w13) && equal(block->shared.w2, shared->w2));
    EXPECT_TRUE(block->has_router() && equal(block->router.gate, router->gate));

    const MoeShape& shape = block->experts.shape();
    const ExpertWeights views = weight_views(block.value());
    EXPECT_EQ(views.w13.data, block->experts.w13.data());
    EXPECT_EQ(views.w13.num_elements(), static_cast<int64_t>(block->experts.w13.size()));
    EXPECT_EQ(views.w13_scale.num_elements(), static_cast<int64_t>(block->experts.w13_scale.size()));
    EXPECT_EQ(views.w2.num_elements(), static_cast<int64_t>(block->experts.w2.size()));
    EXPECT_EQ(views.w2_scale.num_elements(), static_cast<int64_t>(block->experts.w2_scale.size()));
    EXPECT_EQ(views.w2.shape[0], share);
    EXPECT_EQ(views.w2.shape[2], shape.intermediate);
    EXPECT_EQ(views.shared_w13.present(), shared->num_experts > 0);
    EXPECT_EQ(views.shared_w13.num_elements(), static_cast<int64_t>(shared->w13.size()));
    EXPECT_EQ(views.shared_w2_scale.num_elements(), static_cast<int64_t>(shared->w2_scale.size()));
    EXPECT_EQ(views.w13_layout, W13Layout::kGateUp);
  }
}

TEST_P(OfFixture, RoutesLikeItsRouterAlone) {
  constexpr int64_t kTokens = 3;
  const auto block = load_moe_block(fixture(GetParam()), 1, 0, 1, BlockParts::kAll);
  ASSERT_TRUE(block.ok());
  const MoeShape& shape = block->experts.shape();
  const std::vector<uint16_t> x = tokens(kTokens, shape.hidden);
  std::vector<float> logits(kTokens * shape.num_experts), weights(kTokens * shape.top_k), want_weights(weights);
  std::vector<int64_t> ids(kTokens * shape.top_k), want_ids(ids);
  routing::router_logits(std::span<const uint16_t>(x), shape.hidden, block->router.gate.span(), {}, logits);
  routing::choose_experts(block->router.config, logits, block->router.correction_bias.span(), want_ids, want_weights);

  const int64_t m = block->shared.num_experts;
  std::vector<float> shared_weights(kTokens * m, -1.0f);
  const Status status = route(block.value(), TensorView::dense(x.data(), DType::kBFloat16, {kTokens, shape.hidden}),
                              TensorView::dense(ids.data(), DType::kInt64, {kTokens, shape.top_k}),
                              TensorView::dense(weights.data(), DType::kFloat32, {kTokens, shape.top_k}),
                              TensorView::dense(shared_weights.data(), DType::kFloat32, {kTokens, m}));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(ids, want_ids);
  EXPECT_EQ(weights, want_weights);
  for (const float weight : shared_weights) {
    EXPECT_TRUE(block->shared.gate.empty() ? weight == 1 : weight > 0 && weight < 1) << weight;
  }
}

INSTANTIATE_TEST_SUITE_P(MoeBlock, OfFixture,
                         testing::Values("deepseek_v3_fp8", "deepseek_v4_mxfp4", "glm4_moe", "llama4", "mixtral",
                                         "qwen2_moe"),
                         [](const auto& test) { return test.param; });

TEST(MoeBlock, RoutedOnlyHasNeitherRouterNorSharedExperts) {
  const auto block = load_moe_block(fixture("deepseek_v3"), 1, 0, 1, BlockParts::kRoutedOnly);
  ASSERT_TRUE(block.ok());
  EXPECT_FALSE(block->has_router());
  EXPECT_EQ(block->shared.num_experts, 0U);
  expect_error(route(block.value(), {}, {}, {}, {}), Code::kNotSupported, {"load the layer whole"});
}

TEST(MoeBlock, RanksThatCannotBe) {
  const std::string folder = fixture("mixtral");
  const auto load = [&](uint32_t rank, uint32_t num_ranks) {
    return load_moe_block(folder, 1, rank, num_ranks, BlockParts::kAll).status();
  };
  expect_error(load(0, 0), Code::kInvalidArgument, {"rank must be below num_ranks", "got 0 of 0"});
  expect_error(load(4, 4), Code::kInvalidArgument, {"got 4 of 4"});
  expect_error(load(0, 3), Code::kInvalidArgument, {"got 4 experts on 3 ranks"});
  expect_error(load_moe_block(folder, 0, 0, 1, BlockParts::kAll).status(), Code::kBadFile, {"layer 0 must have"});
}

}  // namespace
}  // namespace megamoe::io
