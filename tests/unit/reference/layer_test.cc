// The oracle against closed forms and hand-made layers: nothing else judges it.
#include "core/reference/layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/reference/formats.h"
#include "core/reference/row_error.h"
#include "support/data.h"

namespace megamoe::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint8_t kOne = 0x38;

std::vector<double> forward(const Layer& layer, const Input& input, uint64_t token, Mode mode = Mode::kContract) {
  std::vector<double> out(layer.shape.hidden);
  forward_row(layer, input, token, mode, out.data());
  return out;
}

void expect_tag(const MoeShape& shape, const test::TestTokens& tokens) {
  const test::TestWeights weights = test::tag_weights(shape);
  const Layer layer = weights.layer();
  for (uint64_t t = 0; t < tokens.num_tokens; ++t) {
    const std::vector<double> out = forward(layer, tokens.input(), t);
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      const double expected = test::tag_expected(shape, tokens, t, column);
      if (expected == 0.0) {
        ASSERT_EQ(out[column], 0.0) << "token " << t << " column " << column;
      } else {
        ASSERT_NEAR(out[column], expected, 2 * test::bf16_ulp(expected)) << "token " << t << " column " << column;
      }
    }
  }
}

TEST(ReferenceLayer, TagFindsEverySlotForAllTags) {
  const MoeShape shape{.hidden = 256, .intermediate = 128, .num_experts = 8, .top_k = 2};
  test::TestTokens tokens = test::tag_tokens(shape, 126);
  for (uint64_t t = 0; t < tokens.num_tokens; ++t) {
    tokens.topk_ids[2 * t] = static_cast<int64_t>(t % 8);
    tokens.topk_ids[2 * t + 1] = static_cast<int64_t>((t / 8 + 5 * t + 1) % 8);
  }
  expect_tag(shape, tokens);
}

TEST(ReferenceLayer, TagWithMaskedSlotsWhoseWeightsAreNan) {
  const MoeShape shape{.hidden = 256, .intermediate = 192, .num_experts = 8, .top_k = 4};
  test::TestTokens tokens = test::tag_tokens(shape, 5, 40);
  tokens.topk_ids = {0, 5, -1, 2, -1, -1, -1, -1, 7, -1, -1, -1, -1, 4, -1, 1, 3, 2, 1, 0};
  for (size_t i = 0; i < tokens.topk_ids.size(); ++i) {
    if (tokens.topk_ids[i] == -1) tokens.topk_weights[i] = kNan;
  }
  const test::TestWeights weights = test::tag_weights(shape);
  for (const double value : forward(weights.layer(), tokens.input(), 1)) {
    EXPECT_EQ(value, 0.0);
    EXPECT_FALSE(std::signbit(value)) << "a fully masked token gives +0";
  }
  for (size_t i = 0; i < tokens.topk_ids.size(); ++i) {
    if (tokens.topk_ids[i] == -1) tokens.topk_weights[i] = 0.25f;  // the closed form must not read NaN either
  }
  expect_tag(shape, tokens);
}

TEST(ReferenceLayer, TagCountsEveryDuplicate) {
  const MoeShape shape{.hidden = 256, .intermediate = 256, .num_experts = 8, .top_k = 8};
  test::TestTokens tokens = test::tag_tokens(shape, 2, 77);
  tokens.topk_ids = {3, 3, 5, 5, 5, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  const float weights[] = {.1f, .2f, .05f, .15f, .1f, .2f, .1f, .1f};
  std::copy(std::begin(weights), std::end(weights), tokens.topk_weights.begin());
  expect_tag(shape, tokens);
}

struct Pair {
  float gate, up;
  double clamped, unclamped;
};
constexpr Pair kPairs[] = {
    {30.0f, 30.0f, 99.9955, 900.0},
    {-30.0f, -30.0f, 2.81e-11, 8.42e-11},
    {10.1f, -10.1f, -99.9955, -102.0058},
    {9.9f, 2.0f, 19.7990, 19.7990},
    {0.0f, 30.0f, 0.0, 0.0},
};

TEST(ReferenceSwiglu, DocumentedPairs) {
  for (const Pair& pair : kPairs) {
    const double close = 1e-15 + 2e-3 * std::fabs(pair.clamped);
    EXPECT_NEAR(swiglu(pair.gate, pair.up, 10.0f, 1.0), pair.clamped, close);
    EXPECT_NEAR(swiglu(pair.gate, pair.up, std::nullopt, 1.0), pair.unclamped, close);
    EXPECT_EQ(swiglu(pair.gate, pair.up, std::numeric_limits<float>::infinity(), 0.5),
              swiglu(pair.gate, pair.up, std::nullopt, 0.5));
  }
  EXPECT_NEAR(swiglu(30, 30, 10.0f, 1.0), 99.9955, 1e-4);
  EXPECT_NEAR(swiglu(9.9, 2, 10.0f, 1.0), 19.7990, 1e-4);
  EXPECT_NEAR(swiglu(2, -3, std::nullopt, 1.0), -5.28478, 1e-5);
}

// The same pairs through the whole layer: different scales on the gate and up halves set them, w2 is the identity.
TEST(ReferenceLayer, ClampReachesTheOutput) {
  const MoeShape shape{.hidden = 128, .intermediate = 128, .num_experts = 1, .top_k = 1};
  for (const Pair& pair : kPairs) {
    test::TestWeights weights = test::zero_weights(shape);
    for (uint32_t row = 0; row < 256; ++row) weights.w13[row * 128] = kOne;
    for (uint32_t row = 0; row < 128; ++row) weights.w2[row * 128 + row] = kOne;
    weights.w13_scale = {pair.gate, pair.up};
    test::TestTokens tokens = test::tag_tokens(shape, 1);
    tokens.topk_ids = {0};
    tokens.topk_weights = {1.0f};
    for (const bool clamped : {true, false}) {
      const Layer layer = weights.layer(clamped ? std::optional<float>(10.0f) : std::nullopt);
      const double expected = clamped ? pair.clamped : pair.unclamped;
      // BF16 rounding; below the floor of 1e-10 the codes are coarser.
      const double tolerance = std::fabs(expected) * (std::fabs(expected) < 1e-10 ? 0.0625 : 0.005);
      for (const double value : forward(layer, tokens.input(), 0)) ASSERT_NEAR(value, expected, tolerance);
    }
  }
}

// Every weight and code dequantised first, then textbook matrix products: nothing of the oracle's blocking is shared.
TEST(ReferenceLayer, NoRequantEqualsADenseComputation) {
  const MoeShape shape{.hidden = 256, .intermediate = 192, .num_experts = 3, .top_k = 2};
  const test::TestWeights weights = test::gen_weights(shape, 11);
  const test::TestTokens tokens = test::gen_tokens(shape, 3, 5);
  const Layer layer = weights.layer(0.3f);
  const auto w13 = [&](uint64_t e, uint32_t row, uint32_t k) {  // rows: gate 0..191, up 192..383
    const double code = e4m3_values()[weights.w13[(e * 384 + row) * 256 + k]];
    const uint32_t half = row / 192;
    return code * weights.w13_scale[((e * 2 + half) * 2 + row % 192 / 128) * 2 + k / 128];
  };
  const auto w2 = [&](uint64_t e, uint32_t row, uint32_t k) {
    return e4m3_values()[weights.w2[(e * 256 + row) * 192 + k]] * weights.w2_scale[(e * 2 + row / 128) * 2 + k / 128];
  };
  const test::QuantizedTokens x = test::quantize_tokens(shape, tokens);
  for (uint64_t t = 0; t < 3; ++t) {
    std::vector<double> expected(256);
    for (uint32_t slot = 0; slot < 2; ++slot) {
      const auto e = static_cast<uint64_t>(tokens.topk_ids[t * 2 + slot]);
      for (uint32_t i = 0; i < 192; ++i) {
        double gate = 0.0;
        double up = 0.0;
        for (uint32_t k = 0; k < 256; ++k) {
          const double value = e4m3_values()[x.codes[t * 256 + k]] * x.scales[t * 2 + k / 128];
          gate += w13(e, i, k) * value;
          up += w13(e, 192 + i, k) * value;
        }
        gate = std::min(gate, double{0.3f});
        up = std::max(std::min(up, double{0.3f}), -double{0.3f});
        const double h = gate / (1 + std::exp(-gate)) * up * tokens.topk_weights[t * 2 + slot];
        for (uint32_t column = 0; column < 256; ++column) expected[column] += h * w2(e, column, i);
      }
    }
    const std::vector<double> out = forward(layer, tokens.input(), t, Mode::kNoRequant);
    EXPECT_LE(row_error(out.data(), expected.data(), 256).rel_l2, 1e-12) << "token " << t;
  }
}

TEST(ReferenceLayer, RequantisationCostsAFewPercentAndNoMore) {
  const MoeShape shape{.hidden = 512, .intermediate = 320, .num_experts = 4, .top_k = 2};
  const test::TestWeights weights = test::gen_weights(shape, 3);
  const test::TestTokens tokens = test::gen_tokens(shape, 4, 8);
  for (uint64_t t = 0; t < 4; ++t) {
    const auto contract = forward(weights.layer(), tokens.input(), t);
    const auto exact = forward(weights.layer(), tokens.input(), t, Mode::kNoRequant);
    const RowError error = row_error(contract.data(), exact.data(), shape.hidden);
    EXPECT_LE(error.rel_l2, 8e-2);
    EXPECT_GE(error.rel_l2, 5e-3) << "the modes must differ";
  }
}

TEST(ReferenceLayer, StagesContinueEachOther) {
  const MoeShape shape{.hidden = 256, .intermediate = 192, .num_experts = 4, .top_k = 3};
  const test::TestWeights weights = test::gen_weights(shape, 21);
  const test::TestTokens tokens = test::gen_tokens(shape, 2, 22);
  const Layer layer = weights.layer();
  const QuantizedRow x = input_row(layer, tokens.input(), 1);
  EXPECT_EQ(x.codes.size(), 256u);
  EXPECT_EQ(x.scales.size(), 2u);
  std::vector<std::vector<uint16_t>> rows(3, std::vector<uint16_t>(256));
  std::vector<const uint16_t*> pointers;
  for (uint32_t slot = 0; slot < 3; ++slot) {
    const auto expert = static_cast<uint32_t>(tokens.topk_ids[3 + slot]);
    const QuantizedRow h = intermediate_row(layer, expert, x, tokens.topk_weights[3 + slot]);
    EXPECT_EQ(h.codes.size(), 192u);
    EXPECT_EQ(h.scales.size(), 2u) << "a full group and one of 64 columns";
    std::vector<double> row(256);
    std::vector<double> whole(256);
    down_row(layer, expert, h, row.data());
    slot_row(layer, tokens.input(), 1, slot, Mode::kContract, whole.data());
    EXPECT_EQ(row, whole);
    for (uint32_t column = 0; column < 256; ++column) rows[slot][column] = bf16_nearest(row[column]);
    pointers.push_back(rows[slot].data());
  }
  std::vector<uint16_t> out(256);
  combine_rows(pointers.data(), 3, 256, out.data());
  const std::vector<double> expected = forward(layer, tokens.input(), 1);
  for (uint32_t column = 0; column < 256; ++column) ASSERT_EQ(bf16_value(out[column]), expected[column]) << column;
}

TEST(ReferenceLayer, CodesWithScalesEnterAsTheyAre) {
  const MoeShape shape{.hidden = 256, .intermediate = 128, .num_experts = 2, .top_k = 1};
  const test::TestWeights weights = test::gen_weights(shape, 31);
  const test::TestTokens tokens = test::gen_tokens(shape, 2, 32);
  const test::QuantizedTokens quantized = test::quantize_tokens(shape, tokens);
  Input input = tokens.input();
  input.hidden_bf16 = nullptr;
  input.hidden_codes = quantized.codes.data();
  input.hidden_scales = quantized.scales.data();
  for (uint64_t t = 0; t < 2; ++t) {
    EXPECT_EQ(forward(weights.layer(), input, t), forward(weights.layer(), tokens.input(), t));
  }
  const test::QuantizedTokens zero{std::vector<uint8_t>(512), std::vector<float>(4)};
  input.hidden_codes = zero.codes.data();
  input.hidden_scales = zero.scales.data();
  EXPECT_EQ(forward(weights.layer(), input, 0), std::vector<double>(256, 0.0)) << "codes 0 with scale 0";
}

// One weight of 1 and seven of 2^-9: a BF16 running sum would stay at 0.730469.
TEST(ReferenceLayer, SlotsAreSummedInFp32) {
  const MoeShape shape{.hidden = 128, .intermediate = 128, .num_experts = 8, .top_k = 8};
  test::TestWeights weights = test::tag_weights(shape);
  for (uint64_t row = 0; row < uint64_t{8} * 128; ++row) weights.w2[row * 128] = kOne;
  test::TestTokens tokens = test::tag_tokens(shape, 1, 125);
  tokens.topk_ids = {0, 1, 2, 3, 4, 5, 6, 7};
  tokens.topk_weights.assign(8, std::ldexp(1.0f, -9));
  tokens.topk_weights[0] = 1.0f;
  for (const double value : forward(weights.layer(), tokens.input(), 0)) ASSERT_NEAR(value, 0.741054, 0.0039);
  for (const double value : forward(weights.layer(), tokens.input(), 0)) ASSERT_GT(value, 0.7345);
}

TEST(ReferenceLayer, NonFiniteTokensGiveNanInTheirOwnRow) {
  const MoeShape shape{.hidden = 256, .intermediate = 128, .num_experts = 2, .top_k = 1};
  const test::TestWeights weights = test::gen_weights(shape, 41);
  test::TestTokens tokens = test::gen_tokens(shape, 3, 42);
  const std::vector<double> healthy = forward(weights.layer(), tokens.input(), 1);
  tokens.hidden[5] = 0x7fc0;            // NaN in token 0
  tokens.hidden[2 * 256 + 9] = 0xff80;  // -infinity in token 2
  for (const uint64_t t : {0u, 2u}) {
    for (const double value : forward(weights.layer(), tokens.input(), t)) ASSERT_TRUE(std::isnan(value)) << t;
  }
  EXPECT_EQ(forward(weights.layer(), tokens.input(), 1), healthy);
}

TEST(TestData, GenIsTheDocumentedFunction) {
  EXPECT_EQ(test::splitmix64(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(test::gen_value(0, 0), 2.0 * 0xe220a8 / 16777216.0 - 1.0);
  EXPECT_EQ(test::gen_value(3, 7),
            2.0 * static_cast<double>(test::splitmix64(3 * 4294967296u + 7) >> 40) / 16777216.0 - 1.0);
}

TEST(TestData, QuantisedWeightsAreCloseAndUseTheWholeRange) {
  const MoeShape shape{.hidden = 128, .intermediate = 192, .num_experts = 1, .top_k = 1};
  const test::TestWeights weights = test::gen_weights(shape, 9);
  ASSERT_EQ(weights.w13_scale.size(), 4u);
  ASSERT_EQ(weights.w2_scale.size(), 2u);
  uint32_t largest = 0;
  for (uint32_t row = 0; row < 384; ++row) {
    for (uint32_t k = 0; k < 128; ++k) {
      const uint8_t code = weights.w13[row * 128 + k];
      largest = std::max(largest, uint32_t{code} & 0x7f);
      const double value = e4m3_values()[code] * weights.w13_scale[row / 192 * 2 + row % 192 / 128];
      const double exact = test::gen_value(9, row * 128 + k) * 2 / std::sqrt(128.0);
      ASSERT_NEAR(value, exact, std::fabs(exact) / 16 + 1e-6) << row << ", " << k;
    }
  }
  EXPECT_EQ(largest, 0x7eu);
}

/// With TAG an expert is known by its column, and its share is in proportion to its weight.
TEST(ReferenceLayer, TagFindsSharedExpertsScaledWeightsCopiesAndAbsentExperts) {
  const MoeShape shape{.hidden = 256, .intermediate = 128, .num_experts = 8, .top_k = 2};
  test::TestWeights weights = test::tag_weights(shape);
  const MoeShape shared_shape{.hidden = 256, .intermediate = 128, .num_experts = 2, .top_k = 1};
  weights.shared = std::make_shared<test::TestWeights>(test::tag_weights(shared_shape));  // columns by parity
  weights.routed_scaling = 2.0f;
  test::TestTokens tokens = test::tag_tokens(shape, 3, 50);
  tokens.topk_ids = {0, 1, 2, 1, 0, -1};
  tokens.topk_weights = {.25f, .75f, .5f, .5f, .25f, kNan};
  tokens.shared_weights = {.5f, 1.0f, .5f, .25f, 1.0f, 2.0f};
  Input input = tokens.input();
  input.options.rank = 1;
  input.options.expert_map = {{5, 3}, {6, -1, 7}, {-1}};
  input.options.expert_is_absent = {false, false, false, false, false, false, true, false};
  input.options.renormalize_weights = true;
  const double silu_of_one = 1.0 / (1.0 + std::exp(-1.0));
  // Token 0: copy (0 + 1) % 2 of expert 0 is 3; expert 1 is 6, which is absent. All is 1, left .25: factor 4, scaled
  // by 2. Token 1: nothing is left. Token 2: copy (2 + 1) % 2 again; nothing to make up for.
  const double routed[3][8] = {{0, 0, 0, 2.0, 0, 0, 0, 0}, {}, {0, 0, 0, .5, 0, 0, 0, 0}};
  for (uint64_t t = 0; t < 3; ++t) {
    const std::vector<double> out = forward(weights.layer(), input, t);
    const double unit = silu_of_one * e4m3_values()[tokens.tags[t]] / 448.0;
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      const double expected = unit * (routed[t][column % 8] + tokens.shared_weights[2 * t + column % 2]);
      ASSERT_NEAR(out[column], expected, 3 * test::bf16_ulp(expected)) << "token " << t << " column " << column;
    }
  }
  const std::vector<SlotChoice> choices = slot_choices(weights.layer(), input, 0);
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[0].expert, 3);
  EXPECT_EQ(choices[0].weight, 2.0f);
  EXPECT_EQ(choices[1].expert, -1);
  EXPECT_EQ(choices[2].expert, 8);
  EXPECT_EQ(choices[3].expert, 9);
}

}  // namespace
}  // namespace megamoe::reference
