// Calls without some of the ranks: the others neither wait for them nor use their experts, and after reset() everybody
// is back.
#include <limits>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

constexpr MoeShape kShape{128, 64, 12, 3};
constexpr uint32_t kNumRanks = 4;
constexpr uint32_t kLocal = kShape.num_experts / kNumRanks;

class ActiveRanks : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, ActiveRanks, ::testing::ValuesIn(backend_names()), backend_label);

std::vector<TestTokens> some_tokens(uint64_t seed) {
  std::vector<TestTokens> tokens;
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) tokens.push_back(gen_tokens(kShape, 5 + 9 * rank, seed + rank));
  return tokens;
}

void expect_right_without(const TestWeights& weights, const std::vector<uint32_t>& left_out,
                          const std::vector<TestTokens>& tokens, const std::vector<RankOutput>& outputs,
                          bool renormalizes = false) {
  reference::CallOptions options;
  options.renormalize_weights = renormalizes;
  options.expert_is_absent.resize(kShape.num_experts);
  for (const uint32_t rank : left_out)
    for (uint32_t i = 0; i < kLocal; ++i) options.expert_is_absent[rank * kLocal + i] = true;
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    if (options.expert_is_absent[rank * kLocal]) continue;
    reference::Input input = tokens[rank].input();
    const float* shared_weights = input.options.shared_weights;
    input.options = options;
    input.options.rank = rank;
    input.options.shared_weights = shared_weights;
    expect_matches_oracle(weights.layer(), input, outputs[rank]);
  }
}

TEST_P(ActiveRanks, LeaveOneAfterTheOtherAndComeBackAfterReset) {
  const TestWeights weights = gen_weights(kShape, 8);
  LayerGroup group(config(kShape, 64), kNumRanks, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = some_tokens(1);
  const std::vector<RankOutput> whole = group.forward(tokens);
  expect_matches_oracle(weights, std::nullopt, tokens, whole);
  for (uint32_t round = 0; round < 2; ++round) {
    for (const std::vector<uint32_t>& left_out : {std::vector<uint32_t>{2}, {2, 0}, {2, 0, 3}}) {
      for (uint32_t call = 0; call < 3; ++call) {  // both banks, and over what a rank left in them
        const std::vector<TestTokens> others = some_tokens(10 * call + round);
        const std::vector<RankOutput> outputs = group.forward_without(left_out, others);
        expect_right_without(weights, left_out, others, outputs);
        for (const uint32_t rank : left_out)
          EXPECT_EQ(outputs[rank].rows, std::vector<uint16_t>(others[rank].num_tokens * kShape.hidden, kPoison));
      }
    }
    expect_all_ok(group.reset());
    expect_same_bits(whole, group.forward(tokens));
    expect_same_bits(whole, group.forward(tokens));
  }
}

TEST_P(ActiveRanks, AreTheSameBitsAsMaskedSlots) {
  const TestWeights weights = gen_weights(kShape, 8);
  const std::vector<TestTokens> tokens = some_tokens(3);
  std::vector<TestTokens> masked = tokens;
  for (TestTokens& part : masked)
    for (int64_t& id : part.topk_ids) id = id / kLocal == 1 ? -1 : id;
  LayerGroup group(config(kShape, 64), kNumRanks, weights);
  expect_all_ok(group.created());
  std::vector<RankOutput> expected = group.forward(masked);
  std::vector<RankOutput> outputs = group.forward_without({1}, tokens);
  for (std::vector<RankOutput>* list : {&expected, &outputs}) (*list)[1] = {};
  expect_same_bits(expected, outputs);
}

TEST_P(ActiveRanks, WeightsMakeUpForWhatIsMissing) {
  TestWeights weights = gen_weights(kShape, 8);
  weights.shared = std::make_shared<TestWeights>(gen_weights({kShape.hidden, kShape.intermediate, 1, 1}, 5));
  weights.routed_scaling = 2.5f;
  LayerConfig layer_config = config(kShape, 64);
  layer_config.num_shared_experts = 1;
  layer_config.routed_scaling = 2.5f;
  LayerGroup group(layer_config, kNumRanks, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = some_tokens(4);
  for (TestTokens& part : tokens)
    for (uint64_t token = 0; token < part.num_tokens; ++token) {
      part.shared_weights.push_back(0.5f + 0.125f * static_cast<float>(token % 4));
      if (token % 3 == 0) {  // masked by the caller: not made up for
        part.topk_ids[token * kShape.top_k + 1] = -1;
        part.topk_weights[token * kShape.top_k + 1] = std::numeric_limits<float>::quiet_NaN();
      }
      if (token % 4 == 1)  // nothing is left: nothing to scale
        for (uint32_t slot = 0; slot < kShape.top_k; ++slot) part.topk_ids[token * kShape.top_k + slot] = 3 + slot;
    }
  const auto renormalize = [](uint32_t, ForwardArgs& args) { args.renormalize_weights = true; };
  expect_right_without(weights, {}, tokens, group.forward(tokens, renormalize), true);
  expect_right_without(weights, {1}, tokens, group.forward_without({1}, tokens, renormalize), true);
}

TEST_P(ActiveRanks, ARankThatComesBackWithoutResetIsToldSo) {
  const TestWeights weights = gen_weights(kShape, 8);
  LayerGroup group(config(kShape, 64), kNumRanks, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = some_tokens(1);
  const std::vector<RankOutput> whole = group.forward(tokens);
  const char* reason =
      "active_ranks may only lose ranks until reset(), since a rank that misses a call does not know which call comes "
      "next, got rank 2 back; call reset() on every rank first";
  for (uint32_t missed = 1; missed <= 3; ++missed) {
    for (uint32_t call = 0; call < missed; ++call) expect_all_ok(group.forward_without({2}, tokens));
    const std::vector<RankOutput> outputs = group.forward(tokens);
    expect_untouched(outputs);
    for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
      EXPECT_NE(outputs[rank].status.message().find(reason), std::string::npos)
          << "rank " << rank << ": " << outputs[rank].status.message();
      EXPECT_EQ(name(outputs[rank].status.code()), name(rank == 2 ? Code::kPeerFailed : Code::kInvalidArgument));
    }
    // The others may go on without it.
    expect_right_without(weights, {2}, tokens, group.forward_without({2}, tokens));
    expect_all_ok(group.reset());
    expect_same_bits(whole, group.forward(tokens));
  }
}

TEST_P(ActiveRanks, ACallThatIsRefusedCountsForThoseWhoTookPart) {
  const TestWeights weights = gen_weights(kShape, 8);
  LayerGroup group(config(kShape, 64), kNumRanks, weights);
  expect_all_ok(group.created());
  std::vector<TestTokens> tokens = some_tokens(1);
  expect_right_without(weights, {3}, tokens, group.forward_without({3}, tokens));
  std::vector<TestTokens> bad = tokens;
  bad[1].topk_ids[4] = 12;
  const std::vector<RankOutput> refused = group.forward_without({3}, bad);
  for (const uint32_t rank : {0u, 1u, 2u})
    EXPECT_NE(refused[rank].status.message().find("got 12 at rank 1, token 1, slot 1"), std::string::npos)
        << refused[rank].status.message();
  expect_untouched(refused);
  expect_right_without(weights, {3}, tokens, group.forward_without({3}, tokens));
}

TEST_P(ActiveRanks, SetsThatCannotBeAreRefusedWithoutTroublingAnybody) {
  const TestWeights weights = gen_weights(kShape, 8);
  LayerGroup group(config(kShape, 64), kNumRanks, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = some_tokens(1);
  std::vector<uint16_t> output;
  ForwardArgs args = group.args(1, tokens[1], output);
  args.active_ranks = {0b1101, 0};
  EXPECT_NE(group.layer(1).forward(args).message().find(
                "active_ranks must contain the rank that calls, since the others do not wait for ranks that are left "
                "out, and rank 1 is not in it"),
            std::string::npos);
  args.active_ranks = {0b1111, 2};
  EXPECT_NE(
      group.layer(1).forward(args).message().find("active_ranks must be a set of ranks below 4, got rank 65 in it"),
      std::string::npos);
  expect_matches_oracle(weights, std::nullopt, tokens, group.forward(tokens));
}

}  // namespace
}  // namespace megamoe::test
