// Bad arguments on one rank: the same sentence on every rank, nothing written anywhere, and the next call is right.
#include "support/backend_test.h"
#include "support/placed_calls.h"

namespace megamoe::test {
namespace {

class Refusal : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Refusal, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{128, 64, 8, 2};
constexpr uint32_t kRanks = 4;

struct BadCall {
  const char* what;
  std::function<void(ForwardArgs&)> spoil;
  const char* reason;
};

const BadCall kBadCalls[] = {
    {"a missing view", [](ForwardArgs& a) { a.hidden_states = {}; },
     "hidden_states must have shape [tokens, 128], got []"},
    {"another hidden size", [](ForwardArgs& a) { a.hidden_states.shape[1] = 64; },
     "hidden_states must have shape [5, 128], got [5, 64]"},
    {"a dtype that is not taken", [](ForwardArgs& a) { a.hidden_states.dtype = DType::kFloat32; },
     "hidden_states must be bfloat16 or float8_e4m3fn, got float32"},
    {"FP8 tokens without scales", [](ForwardArgs& a) { a.hidden_states.dtype = DType::kFloat8E4M3; },
     "hidden_states_scale must be given"},
    {"columns apart", [](ForwardArgs& a) { a.hidden_states.strides[1] = 2; },
     "the elements of a row of hidden_states must be neighbours (stride 1), got stride 2"},
    {"a null pointer", [](ForwardArgs& a) { a.topk_ids.data = nullptr; }, "topk_ids must not be null"},
    {"another top-k", [](ForwardArgs& a) { a.topk_ids.shape[1] = 1; }, "topk_ids must have shape [5, 2], got [5, 1]"},
    {"ids of a type that is not taken", [](ForwardArgs& a) { a.topk_ids.dtype = DType::kUInt8; },
     "topk_ids must be int32 or int64, got uint8"},
    {"other weights", [](ForwardArgs& a) { a.topk_weights.dtype = DType::kBFloat16; },
     "topk_weights must be float32, got bfloat16"},
    {"a short output", [](ForwardArgs& a) { a.output.shape[0] = 4; }, "output must have shape [5, 128], got [4, 128]"},
    {"an output of another type", [](ForwardArgs& a) { a.output.dtype = DType::kFloat32; },
     "output must be bfloat16, got float32"},
    {"output rows on top of each other", [](ForwardArgs& a) { a.output.strides[0] = 64; },
     "rows of output must not overlap"},
};

TEST_P(Refusal, LeavesNothingToFinish) {
  const TestWeights weights = gen_weights(kShape, 9);
  LayerGroup group(config(kShape, 8), kRanks, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens(kRanks, gen_tokens(kShape, 5, 4));
  const auto finish = [&] {
    expect_all_ok(on_each_rank(kRanks, [&](uint32_t rank) { return group.layer(rank).finish(); }));
  };
  finish();  // before any call
  expect_all_ok(group.forward(tokens));
  finish();
  const std::vector<RankOutput> refused = group.forward(tokens, [](uint32_t rank, ForwardArgs& args) {
    if (rank == 2) args.topk_ids = {};
  });
  expect_refused(refused, 2, Code::kInvalidArgument, "topk_ids must be given");
  finish();  // the refusal was told by forward
}

TEST_P(Refusal, OfOneRanksArgumentsIsEverybodys) {
  const TestWeights weights = gen_weights(kShape, 9);
  LayerGroup group(config(kShape, 8), kRanks, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens(kRanks, gen_tokens(kShape, 5, 4));
  const std::vector<RankOutput> right = group.forward(tokens);
  expect_matches_oracle(weights, std::nullopt, tokens, right);
  uint32_t culprit = 0;
  for (const BadCall& bad : kBadCalls) {
    SCOPED_TRACE(bad.what);
    const std::vector<RankOutput> outputs = group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
      if (rank == culprit) bad.spoil(args);
    });
    expect_refused(outputs, culprit, Code::kInvalidArgument, bad.reason);
    expect_same_bits(right, group.forward(tokens));
    culprit = (culprit + 1) % kRanks;
  }
}

TEST_P(Refusal, OfAnIdOutOfRangeNamesRankTokenSlotAndValue) {
  const TestWeights weights = gen_weights(kShape, 9);
  LayerGroup group(config(kShape, 8), kRanks, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens(kRanks, gen_tokens(kShape, 5, 4));
  const std::vector<RankOutput> right = group.forward(tokens);
  // One past the last expert (what a shared or a physical expert's id would be), and what broken padding looks like.
  for (const int64_t bad_id : {int64_t{8}, int64_t{-2}, int64_t{1} << 32, INT64_MAX, INT64_MIN}) {
    std::vector<TestTokens> spoiled = tokens;
    spoiled[2].topk_ids[3 * kShape.top_k + 1] = bad_id;
    expect_refused(group.forward(spoiled), 2, Code::kInvalidArgument,
                   "expert in [0, 8), got " + std::to_string(bad_id) + " at rank 2, token 3, slot 1");
    expect_same_bits(right, group.forward(tokens));
  }
}

TEST_P(Refusal, BySeveralRanksAtOnceLeavesTheGroupUsable) {
  const TestWeights weights = gen_weights(kShape, 9);
  LayerGroup group(config(kShape, 8), kRanks, weights);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens(kRanks, gen_tokens(kShape, 5, 4));
  const std::vector<RankOutput> right = group.forward(tokens);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const std::vector<RankOutput> outputs = group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
      if (rank % 2 == static_cast<uint32_t>(repeat) % 2) args.topk_weights = {};
    });
    for (const RankOutput& output : outputs) {
      EXPECT_FALSE(output.status.ok());
      EXPECT_NE(output.status.message().find("topk_weights must be given"), std::string::npos)
          << output.status.message();
    }
    expect_untouched(outputs);
  }
  expect_same_bits(right, group.forward(tokens));
}

TEST_P(Refusal, BeforeWeightsAreLoadedSaysSo) {
  const TestWeights weights = gen_weights(kShape, 9);
  const auto group = members(2);
  const std::vector<TestTokens> tokens(2, gen_tokens(kShape, 3, 4));
  std::vector<RankOutput> outputs(2, unwritten_output(config(kShape, 8)));
  PlacedCalls calls(GetParam());
  expect_all_ok(on_each_rank(2, [&](uint32_t rank) -> Status {
    auto layer = MoeLayer::create(config(kShape, 8), group[rank]);
    if (!layer.ok()) return layer.status();
    if (rank == 0) MEGAMOE_RETURN_IF_ERROR(calls.load_weights(layer.value(), rank_weights(weights, rank, 2)));
    const auto forward = [&] {
      return calls.forward_and_fetch(layer.value(), forward_args(kShape, tokens[rank], outputs[rank].rows));
    };
    const Status without = forward();
    EXPECT_EQ(name(without.code()), name(rank == 1 ? Code::kInvalidArgument : Code::kPeerFailed));
    EXPECT_NE(without.message().find("load_weights must have succeeded"), std::string::npos) << without.message();
    if (rank == 1) MEGAMOE_RETURN_IF_ERROR(calls.load_weights(layer.value(), rank_weights(weights, rank, 2)));
    outputs[rank].status = forward();
    return outputs[rank].status;
  }));
  expect_matches_oracle(weights, std::nullopt, tokens, outputs);
}

TEST_P(Refusal, OfAConfigurationThatDiffersBetweenRanksNamesBoth) {
  const auto group = members(2);
  const auto create_with = [&](const std::function<void(LayerConfig&)>& change) {
    return on_each_rank(2, [&](uint32_t rank) {
      LayerConfig mine = config(kShape, 8);
      if (rank == 1) change(mine);
      return MoeLayer::create(mine, group[rank]).status();
    });
  };
  const std::vector<Status> differing = create_with([](LayerConfig& c) { c.max_tokens_per_rank = 9; });
  for (const Status& status : differing) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("max_tokens_per_rank=8"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("max_tokens_per_rank=9"), std::string::npos) << status.message();
  }
  const std::vector<Status> clamped = create_with([](LayerConfig& c) { c.swiglu_clamp = 7.0f; });
  for (const Status& status : clamped) EXPECT_EQ(status.code(), Code::kInvalidArgument);
  const std::vector<Status> wrong = create_with([](LayerConfig& c) { c.shape.hidden = 100; });
  EXPECT_EQ(wrong[1].code(), Code::kInvalidArgument);
  EXPECT_EQ(wrong[0].code(), Code::kPeerFailed);
  for (const Status& status : wrong)
    EXPECT_NE(status.message().find("hidden must be a positive multiple of 128"), std::string::npos)
        << status.message();
  expect_all_ok(create_with([](LayerConfig& c) { c.num_threads = 2; }));
}

}  // namespace
}  // namespace megamoe::test
