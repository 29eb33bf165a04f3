// The SwiGLU clamp: gate from above only, up on both sides, nothing where unset or infinite, refused where senseless.
#include <cmath>
#include <limits>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Clamp : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Clamp, ::testing::ValuesIn(backend_names()), backend_label);

// One expert that reads gate from column 0 and up from column 128, and writes one activation to every column.
constexpr MoeShape kShape{256, 128, 1, 1};

TestWeights pass_through_weights() {
  TestWeights weights = zero_weights(kShape);
  const uint8_t one = core::e4m3_encode(1.0f);
  for (uint64_t row = 0; row < kShape.intermediate; ++row) {
    weights.w13[row * kShape.hidden] = one;
    weights.w13[(kShape.intermediate + row) * kShape.hidden + 128] = one;
  }
  for (uint64_t row = 0; row < kShape.hidden; ++row) weights.w2[row * kShape.intermediate] = one;
  return weights;
}

struct Case {
  float gate, up;
  double clamped_at_10, unclamped;
};
const std::vector<Case> kCases = {{30.0f, 30.0f, 99.9955, 900.0},
                                  {-30.0f, -30.0f, 2.81e-11, 8.42e-11},
                                  {10.1f, -10.1f, -99.9955, -102.0058},
                                  {9.9f, 2.0f, 19.7990, 19.7990},
                                  {0.0f, 30.0f, 0.0, 0.0}};

/// Gate and up of each case exactly: code +-1 with the magnitude as the group's scale.
std::vector<RankOutput> run_cases(LayerGroup& group) {
  const auto num_tokens = static_cast<int64_t>(kCases.size());
  std::vector<uint8_t> codes(kCases.size() * kShape.hidden);
  std::vector<float> scales;
  for (size_t i = 0; i < kCases.size(); ++i) {
    codes[i * kShape.hidden] = core::e4m3_encode(std::copysign(1.0f, kCases[i].gate));
    codes[i * kShape.hidden + 128] = core::e4m3_encode(std::copysign(1.0f, kCases[i].up));
    scales.push_back(std::fabs(kCases[i].gate));
    scales.push_back(std::fabs(kCases[i].up));
  }
  TestTokens tokens = gen_tokens(kShape, kCases.size(), 1);
  tokens.topk_ids.assign(kCases.size(), 0);
  tokens.topk_weights.assign(kCases.size(), 1.0f);
  return group.forward({tokens}, [&](uint32_t, ForwardArgs& args) {
    args.hidden_states = TensorView::dense(codes.data(), DType::kFloat8E4M3, {num_tokens, int64_t{kShape.hidden}});
    args.hidden_states_scale = TensorView::dense(scales.data(), DType::kFloat32, {num_tokens, 2});
    args.scale_format = ScaleFormat::kFloat32;
  });
}

void expect_values(const std::vector<RankOutput>& outputs, bool is_clamped) {
  expect_all_ok(outputs);
  for (size_t i = 0; i < kCases.size(); ++i) {
    const double expected = is_clamped ? kCases[i].clamped_at_10 : kCases[i].unclamped;
    // A value below the quantiser's floor of 1e-10 keeps the three mantissa bits of its code only.
    const double relative = std::fabs(expected) < 1e-10 ? 1.0 / 16 : 1.0 / 256;
    for (const uint16_t bits : row_of(kShape, outputs[0], i))
      ASSERT_NEAR(core::bf16_decode(bits), expected, std::fabs(expected) * relative)
          << "gate " << kCases[i].gate << ", up " << kCases[i].up;
  }
}

TEST_P(Clamp, OfTenLimitsGateFromAboveAndUpOnBothSides) {
  const TestWeights weights = pass_through_weights();
  LayerConfig clamped = config(kShape, 8);
  clamped.swiglu_clamp = 10.0f;
  LayerGroup group(clamped, 1, weights);
  expect_all_ok(group.created());
  expect_values(run_cases(group), true);
}

TEST_P(Clamp, ThatIsUnsetOrInfiniteLimitsNothing) {
  const TestWeights weights = pass_through_weights();
  for (const std::optional<float> clamp : {std::optional<float>(), {std::numeric_limits<float>::infinity()}}) {
    LayerConfig open = config(kShape, 8);
    open.swiglu_clamp = clamp;
    LayerGroup group(open, 1, weights);
    expect_all_ok(group.created());
    expect_values(run_cases(group), false);
  }
}

TEST_P(Clamp, ThatIsZeroNegativeOrNanIsRefused) {
  for (const float clamp : {0.0f, -0.0f, -1.0f, -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    LayerConfig senseless = config(kShape, 8);
    senseless.shape.num_experts = 2;
    senseless.swiglu_clamp = clamp;
    const auto group = members(2);
    const std::vector<Status> statuses =
        on_each_rank(2, [&](uint32_t rank) { return MoeLayer::create(senseless, group[rank]).status(); });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << clamp;
      EXPECT_NE(status.message().find("swiglu_clamp must be greater than 0"), std::string::npos) << status.message();
    }
  }
}

TEST_P(Clamp, OnRandomDataMatchesTheOracle) {
  const MoeShape shape{256, 192, 8, 4};
  const TestWeights weights = gen_weights(shape, 18);
  const std::vector<TestTokens> tokens = {gen_tokens(shape, 9, 1), gen_tokens(shape, 8, 2)};
  LayerConfig clamped = config(shape, 16);
  clamped.swiglu_clamp = 0.25f;
  LayerGroup group(clamped, 2, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> outputs = group.forward(tokens);
  expect_matches_oracle(weights, 0.25f, tokens, outputs);
  LayerGroup open(config(shape, 16), 2, weights);
  EXPECT_NE(outputs[0].rows, open.forward(tokens)[0].rows);
}

}  // namespace
}  // namespace megamoe::test
