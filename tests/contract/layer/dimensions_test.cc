// Hidden and intermediate sizes on and off the tile grid: right against the unpadded oracle, or refused at creation.
#include <cmath>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Dimensions : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Dimensions, ::testing::ValuesIn(backend_names()), backend_label);

/// Codes of magnitude 0.5 to 1.9 and random sign, scales around 1 / sqrt(K): quick to make at real model sizes.
TestWeights fast_weights(const MoeShape& shape, uint64_t seed) {
  TestWeights weights = zero_weights(shape);
  for (std::vector<uint8_t>* codes : {&weights.w13, &weights.w2}) {
    uint64_t state = splitmix64(++seed);
    for (size_t i = 0; i < codes->size(); ++i) {
      if (i % 8 == 0) state = splitmix64(state);
      const auto byte = static_cast<uint8_t>(state >> (i % 8 * 8));
      (*codes)[i] = static_cast<uint8_t>((byte & 0x8f) | 0x30);
    }
  }
  const auto fill = [&](std::vector<float>& scales, uint32_t k) {
    for (size_t i = 0; i < scales.size(); ++i)
      scales[i] = static_cast<float>((1.5 + gen_value(seed, i)) / std::sqrt(static_cast<double>(k)));
  };
  fill(weights.w13_scale, shape.hidden);
  fill(weights.w2_scale, shape.intermediate);
  return weights;
}

void expect_right(const LayerConfig& layer_config, uint64_t tokens_per_rank) {
  const MoeShape& shape = layer_config.shape;
  SCOPED_TRACE("hidden " + std::to_string(shape.hidden) + ", intermediate " + std::to_string(shape.intermediate));
  const TestWeights weights = fast_weights(shape, 5);
  for (const uint32_t ranks : {1u, 2u}) {
    LayerGroup group(layer_config, ranks, weights);
    expect_all_ok(group.created());
    std::vector<TestTokens> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(gen_tokens(shape, tokens_per_rank, 7 + rank));
    expect_matches_oracle(weights, std::nullopt, tokens, group.forward(tokens));
  }
}

TEST_P(Dimensions, SmallSizesAndHalfGroupsAreRight) {
  for (const auto& [hidden, intermediate] :
       {std::pair{128u, 64u}, {128u, 128u}, {256u, 192u}, {256u, 320u}, {384u, 64u}, {640u, 384u}})
    expect_right(config({hidden, intermediate, 4, 2}, 8), 3);
}

TEST_P(Dimensions, WideHiddenIsRight) {
  expect_right(config({6144, 256, 4, 2}, 8), 3);
  expect_right(config({8192, 1024, 2, 2}, 8), 1);
}

TEST_P(Dimensions, WideIntermediateIsRight) {
  expect_right(config({1024, 4096, 2, 2}, 8), 1);
  expect_right(config({1024, 4224, 2, 2}, 8), 1);
  expect_right(config({128, 8256, 4, 2}, 8), 2);
}

TEST_P(Dimensions, OfALargeModelAreRight) { expect_right(config({7168, 3072, 2, 2}, 8), 1); }

TEST_P(Dimensions, OffTheGridAreRefusedWithTheNextSize) {
  struct Refused {
    uint32_t hidden, intermediate;
    const char* reason;
  };
  for (const Refused& refused : {
           Refused{192, 256, "hidden must be a positive multiple of 128 (one FP8 scale block), got 192; pad it to 256"},
           Refused{200, 256, "hidden must be a positive multiple of 128 (one FP8 scale block), got 200; pad it to 256"},
           Refused{256, 96,
                   "intermediate must be a positive multiple of 64 (half a scale block), got 96; pad it to 128"},
           Refused{256, 0, "intermediate must be a positive multiple of 64"},
           Refused{0, 256, "hidden must be a positive multiple of 128"},
       }) {
    const LayerConfig layer_config = config({refused.hidden, refused.intermediate, 4, 2}, 8);
    const auto group = members(2);
    const std::vector<Status> statuses =
        on_each_rank(2, [&](uint32_t rank) { return MoeLayer::create(layer_config, group[rank]).status(); });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find(refused.reason), std::string::npos) << status.message();
    }
  }
}

}  // namespace
}  // namespace megamoe::test
