// NaN and infinity spoil their own row and no other bit.
#include <cmath>
#include <limits>

#include "core/formats/bf16.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class NonFinite : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, NonFinite, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{256, 192, 8, 2};
constexpr uint64_t kTokens = 24, kSpoiled = 11;

/// Every column of the spoiled token is NaN, everything else as it was.
void expect_only_one_row_spoiled(const std::vector<RankOutput>& right, const std::vector<RankOutput>& outputs) {
  expect_all_ok(outputs);
  for (size_t rank = 0; rank < outputs.size(); ++rank)
    for (uint64_t token = 0; token < kTokens; ++token) {
      if (rank == 0 && token == kSpoiled) {
        for (const uint16_t bits : row_of(kShape, outputs[rank], token))
          ASSERT_TRUE(std::isnan(core::bf16_decode(bits)));
      } else {
        EXPECT_EQ(row_of(kShape, outputs[rank], token), row_of(kShape, right[rank], token))
            << "rank " << rank << " token " << token;
      }
    }
}

TEST_P(NonFinite, ElementsAndWeightsOfATokenStayInItsRow) {
  const TestWeights weights = gen_weights(kShape, 5);
  LayerGroup group(config(kShape, kTokens), 2, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = {gen_tokens(kShape, kTokens, 1), gen_tokens(kShape, kTokens, 2)};
  const std::vector<RankOutput> right = group.forward(tokens);
  expect_matches_oracle(weights, std::nullopt, tokens, right);
  for (const float value :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(value);
    std::vector<TestTokens> spoiled = tokens;
    spoiled[0].hidden[kSpoiled * kShape.hidden + 77] = core::bf16_encode(value);
    expect_only_one_row_spoiled(right, group.forward(spoiled));
    spoiled = tokens;
    spoiled[0].topk_weights[kSpoiled * kShape.top_k] = value;
    expect_only_one_row_spoiled(right, group.forward(spoiled));
  }
  expect_same_bits(right, group.forward(tokens));
}

TEST_P(NonFinite, ScalesOfATokenStayInItsRow) {
  const TestWeights weights = gen_weights(kShape, 5);
  LayerGroup group(config(kShape, kTokens), 1, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = {gen_tokens(kShape, kTokens, 1)};
  const std::vector<RankOutput> right = group.forward(tokens);
  QuantizedTokens quantized = quantize_tokens(kShape, tokens[0]);
  quantized.scales[kSpoiled * 2 + 1] = std::nanf("");
  expect_only_one_row_spoiled(right, group.forward(tokens, [&](uint32_t, ForwardArgs& args) {
    args.hidden_states = TensorView::dense(quantized.codes.data(), DType::kFloat8E4M3, {kTokens, kShape.hidden});
    args.hidden_states_scale = TensorView::dense(quantized.scales.data(), DType::kFloat32, {kTokens, 2});
    args.scale_format = ScaleFormat::kFloat32;
  }));
}

}  // namespace
}  // namespace megamoe::test
