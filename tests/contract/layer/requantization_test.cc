// Between the GEMMs values are requantised in groups of 128 columns with continuous scales; other choices would show.
#include <algorithm>
#include <cmath>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "core/reference/row_error.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Requantization : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Requantization, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{256, 256, 2, 1};

bool is_loud(uint32_t column) { return column % 128 < 64; }

/// In each group of 128 the first half of the activations is about 1, the second about 2^-16, and the second GEMM sees
/// the second half only.
TestWeights loud_and_quiet_halves() {
  TestWeights weights = quantize_weights(
      kShape, [](uint32_t, uint32_t, uint32_t) { return 0.0; },
      [](uint32_t expert, uint32_t row, uint32_t column) {
        return is_loud(column) ? 0.0 : gen_value(10 + expert, uint64_t{row} * kShape.intermediate + column);
      });
  constexpr uint8_t k448 = 0x7e, kThreeSmallest = 3;  // 448, and 3 * 2^-9
  for (uint64_t expert = 0; expert < kShape.num_experts; ++expert) {
    uint8_t* w13 = weights.w13.data() + expert * weights.w13_elements_per_expert();
    for (uint32_t i = 0; i < kShape.intermediate; ++i) {
      w13[uint64_t{i} * kShape.hidden] = core::e4m3_encode(is_loud(i) ? 1.0f : 1.0f + static_cast<float>(i % 8) / 8);
      w13[(uint64_t{kShape.intermediate} + i) * kShape.hidden + 1] = is_loud(i) ? k448 : kThreeSmallest;
    }
    const uint64_t per_half = weights.w13_scales_per_expert() / 2;
    std::fill_n(weights.w13_scale.begin() + static_cast<int64_t>((2 * expert + 1) * per_half), per_half, 1.0f / 448);
  }
  return weights;
}

TEST_P(Requantization, GroupsHave128Columns) {
  const TestWeights weights = loud_and_quiet_halves();
  TestTokens tokens = tag_tokens(kShape, 8, 118);
  for (uint64_t token = 0; token < 8; ++token) {
    tokens.topk_ids[token] = static_cast<int64_t>(token % 2);
    tokens.hidden[token * kShape.hidden] = core::bf16_encode(0.5f + 0.125f * static_cast<float>(token));
  }
  LayerGroup group(config(kShape, 8), 1, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> outputs = group.forward({tokens});
  expect_matches_oracle(weights, std::nullopt, {tokens}, outputs);

  // The same without any requantisation differs by far more than the limit, so a group of 64, whose quiet half has a
  // scale of its own and loses little, cannot pass.
  const reference::Layer layer = weights.layer();
  std::vector<double> unquantised(kShape.hidden);
  for (uint64_t token = 0; token < 8; ++token) {
    reference::forward_row(layer, tokens.input(), token, reference::Mode::kNoRequant, unquantised.data());
    const auto error =
        reference::row_error(outputs[0].rows.data() + token * kShape.hidden, unquantised.data(), kShape.hidden);
    EXPECT_GE(error.rel_l2, 5e-2) << "token " << token;
  }
}

TEST_P(Requantization, ScalesHaveNoStepAtPowersOfTwo) {
  constexpr int kSteps = 10;
  const TestWeights weights = gen_weights(kShape, 8);
  TestTokens tokens = gen_tokens(kShape, 2 * kSteps + 1, 3);
  for (uint64_t token = 1; token < tokens.num_tokens; ++token)
    std::copy_n(tokens.hidden.begin(), kShape.hidden,
                tokens.hidden.begin() + static_cast<int64_t>(token * kShape.hidden));
  tokens.topk_ids.assign(tokens.num_tokens, 0);

  // The router weight at which the first group's amax is a power of two.
  const reference::Layer layer = weights.layer();
  std::vector<double> gate(kShape.intermediate), up(kShape.intermediate);
  reference::gate_up_row(layer, 0, reference::input_row(layer, tokens.input(), 0), gate.data(), up.data());
  double amax = 0;
  for (uint32_t i = 0; i < 128; ++i)
    amax = std::max(amax, std::fabs(reference::swiglu(gate[i], up[i], std::nullopt, 1.0)));
  const double base = std::exp2(std::ceil(std::log2(amax))) / amax;
  for (int j = -kSteps; j <= kSteps; ++j)
    tokens.topk_weights[static_cast<size_t>(j + kSteps)] = static_cast<float>(base * (1.0 + j * 1e-4));

  LayerGroup group(config(kShape, tokens.num_tokens), 1, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> outputs = group.forward({tokens});
  expect_matches_oracle(weights, std::nullopt, {tokens}, outputs);
  const auto scaled = [&](uint64_t token, uint64_t column) {
    return double{core::bf16_decode(outputs[0].rows[token * kShape.hidden + column])} / tokens.topk_weights[token];
  };
  for (uint64_t token = 1; token < tokens.num_tokens; ++token) {
    // BF16 outputs that flip by an ulp make up to 1e-3 of this; other codes, as a power-of-two scale gives, 2e-2.
    const auto error = reference::row_error_of(
        kShape.hidden, [&](uint64_t i) { return scaled(token, i); }, [&](uint64_t i) { return scaled(token - 1, i); });
    EXPECT_LE(error.rel_l2, 2e-3) << "between router weights " << token - 1 << " and " << token;
  }
}

}  // namespace
}  // namespace megamoe::test
