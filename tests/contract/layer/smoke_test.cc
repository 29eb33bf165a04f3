// The shortest path through everything: random data and tagged data on 1, 2, 4 and 8 ranks, against the oracle and bit
// for bit.
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Layer : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Layer, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(Layer, RandomTokensMatchTheOracleAndDoNotDependOnRanks) {
  const MoeShape shape{256, 192, 16, 4};
  const TestWeights weights = gen_weights(shape, 11);
  const TestTokens all = gen_tokens(shape, 37, 5);
  std::vector<RankOutput> first;
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
    LayerGroup group(config(shape, 64), ranks, weights);
    expect_all_ok(group.created());
    const auto tokens = split_tokens(shape, all, ranks);
    const auto outputs = group.forward(tokens);
    expect_matches_oracle(weights, std::nullopt, tokens, outputs);
    if (first.empty()) first = outputs;
    expect_same_bits(first, outputs);
  }
}

}  // namespace
}  // namespace megamoe::test
