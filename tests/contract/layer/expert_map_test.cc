// Logical experts: a map says which physical ones stand for them in this call, with copies, from call to call another
// one; and what this rank's experts received is added up over calls.
#include <limits>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

using Map = std::vector<std::vector<int32_t>>;  // [logical][copies]

/// The map as a tensor; rows that are shorter than the longest end with -1.
struct MapTensor {
  std::vector<int32_t> values;
  int64_t num_copies = 0;
  int64_t num_logical = 0;

  explicit MapTensor(const Map& map) : num_logical(static_cast<int64_t>(map.size())) {
    for (const auto& copies : map) num_copies = std::max(num_copies, static_cast<int64_t>(copies.size()));
    for (const auto& copies : map)
      for (int64_t i = 0; i < num_copies; ++i)
        values.push_back(i < static_cast<int64_t>(copies.size()) ? copies[static_cast<size_t>(i)] : -1);
  }
  TensorView view() const { return TensorView::dense(values.data(), DType::kInt32, {num_logical, num_copies}); }
};

constexpr uint32_t kNumLogical = 6;
constexpr MoeShape kPhysical{128, 64, 8, 2};
constexpr MoeShape kLogical{128, 64, kNumLogical, 2};

class ExpertMap : public BackendTest {
 protected:
  static LayerConfig mapped_config(uint32_t num_shared = 0) {
    LayerConfig layer_config = config(kPhysical, 48);
    layer_config.num_logical_experts = kNumLogical;
    layer_config.num_shared_experts = num_shared;
    return layer_config;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ExpertMap, ::testing::ValuesIn(backend_names()), backend_label);

/// Where the map says, each physical expert is a copy of its logical one.
TestWeights physical_weights(const TestWeights& logical, const Map& map) {
  TestWeights physical = zero_weights(kPhysical);
  physical.shared = logical.shared;
  const auto copy = [](auto& to, const auto& from, uint64_t per_expert, uint64_t to_expert, uint64_t from_expert) {
    std::copy_n(from.begin() + static_cast<int64_t>(from_expert * per_expert), per_expert,
                to.begin() + static_cast<int64_t>(to_expert * per_expert));
  };
  for (uint64_t from = 0; from < map.size(); ++from) {
    for (const int32_t copy_expert : map[from]) {
      const auto to = static_cast<uint64_t>(copy_expert);
      copy(physical.w13, logical.w13, logical.w13_elements_per_expert(), to, from);
      copy(physical.w13_scale, logical.w13_scale, logical.w13_scales_per_expert(), to, from);
      copy(physical.w2, logical.w2, logical.w2_elements_per_expert(), to, from);
      copy(physical.w2_scale, logical.w2_scale, logical.w2_scales_per_expert(), to, from);
    }
  }
  return physical;
}

const Map kMap = {{3, 6}, {0}, {7, 1, 4}, {2}, {5}, {-1}};
/// Ids of logical experts; expert 5 has no copy in kMap.
std::vector<TestTokens> make_tokens(uint32_t num_ranks) {
  return split_tokens(kLogical, gen_tokens(kLogical, 41, 12), num_ranks);
}
/// The same tokens as a caller without a map would mask them.
std::vector<TestTokens> without_expert_5(std::vector<TestTokens> tokens) {
  for (TestTokens& part : tokens)
    for (int64_t& id : part.topk_ids) id = id == 5 ? -1 : id;
  return tokens;
}
Map without_empty(Map map) {
  for (auto& copies : map)
    if (copies == std::vector<int32_t>{-1}) copies.clear();
  return map;
}

TEST_P(ExpertMap, GivesTheBitsOfTheLogicalExpertsAndDealsOutCopies) {
  TestWeights logical = gen_weights(kLogical, 21);
  for (const uint32_t num_shared : {0u, 1u}) {
    if (num_shared != 0) logical.shared = std::make_shared<TestWeights>(gen_weights({128, 64, 1, 1}, 3));
    LayerConfig plain_config = config(kLogical, 48);
    plain_config.num_shared_experts = num_shared;
    LayerGroup plain(plain_config, 1, logical);
    const std::vector<RankOutput> expected = plain.forward(without_expert_5(make_tokens(1)));
    expect_all_ok(expected);
    const Map copies_of = without_empty(kMap);
    const TestWeights physical = physical_weights(logical, copies_of);
    const MapTensor map(kMap);
    for (const uint32_t num_ranks : {1u, 2u, 4u}) {
      SCOPED_TRACE(std::to_string(num_ranks) + " ranks");
      LayerGroup group(mapped_config(num_shared), num_ranks, physical);
      expect_all_ok(group.created());
      const std::vector<TestTokens> tokens = make_tokens(num_ranks);
      expect_same_bits(expected,
                       group.forward(tokens, [&](uint32_t, ForwardArgs& args) { args.expert_map = map.view(); }));
      std::vector<uint32_t> rows(kPhysical.num_experts);
      for (uint32_t rank = 0; rank < num_ranks; ++rank)
        for (uint64_t i = 0; i < tokens[rank].topk_ids.size(); ++i) {
          const auto& copies = copies_of[static_cast<size_t>(tokens[rank].topk_ids[i])];
          if (!copies.empty()) ++rows[static_cast<size_t>(copies[(i / kLogical.top_k + rank) % copies.size()])];
        }
      std::vector<uint32_t> received;
      for (uint32_t rank = 0; rank < num_ranks; ++rank)
        for (const uint32_t count : group.layer(rank).last_report().rows_per_expert) received.push_back(count);
      EXPECT_EQ(received, rows);
    }
  }
}

TEST_P(ExpertMap, AgreesWithTheOracleAndMakesUpForMaskedExperts) {
  const TestWeights physical = gen_weights(kPhysical, 4);  // all copies different: the choice of copies matters
  const MapTensor map(kMap);
  LayerGroup group(mapped_config(), 2, physical);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = make_tokens(2);
  for (const bool renormalizes : {false, true}) {
    const std::vector<RankOutput> outputs = group.forward(tokens, [&](uint32_t, ForwardArgs& args) {
      args.expert_map = map.view();
      args.renormalize_weights = renormalizes;
    });
    for (uint32_t rank = 0; rank < 2; ++rank) {
      reference::Input input = tokens[rank].input();
      input.options.rank = rank;
      input.options.expert_map = kMap;
      input.options.renormalize_weights = renormalizes;
      expect_matches_oracle(physical.layer(), input, outputs[rank]);
    }
  }
}

TEST_P(ExpertMap, MayBeAnotherOneInEveryCallAndLieInAnyOrder) {
  const TestWeights logical = gen_weights(kLogical, 21);
  LayerGroup plain(config(kLogical, 48), 2, logical);
  const std::vector<RankOutput> expected = plain.forward(without_expert_5(make_tokens(2)));
  const Map maps[] = {{{0}, {1}, {2}, {3}, {4}, {-1}}, {{4, 5}, {1}, {2}, {3, 6}, {0, 7}, {-1}}};
  for (int round = 0; round < 4; ++round) {
    const Map& map = maps[round % 2];
    const MapTensor tensor(map);
    const TestWeights physical = physical_weights(logical, without_empty(map));
    LayerGroup group(mapped_config(), 2, physical);
    expect_all_ok(group.created());
    for (int call = 0; call < 3; ++call) {
      // Copy by copy instead of expert by expert, or one dimension where there is one copy.
      std::vector<int32_t> transposed;
      for (int64_t i = 0; i < tensor.num_copies; ++i)
        for (int64_t logical_idx = 0; logical_idx < tensor.num_logical; ++logical_idx)
          transposed.push_back(tensor.values[static_cast<size_t>(logical_idx * tensor.num_copies + i)]);
      TensorView view = TensorView::dense(transposed.data(), DType::kInt32, {tensor.num_logical, tensor.num_copies});
      view.strides = {1, tensor.num_logical};
      if (tensor.num_copies == 1 && call == 1)
        view = TensorView::dense(transposed.data(), DType::kInt32, {tensor.num_logical});
      expect_same_bits(expected,
                       group.forward(make_tokens(2), [&](uint32_t, ForwardArgs& args) { args.expert_map = view; }));
    }
  }
}

TEST_P(ExpertMap, SwitchesBetweenCallsOfOneLayer) {
  const TestWeights physical = gen_weights(kPhysical, 4);
  LayerGroup group(mapped_config(), 2, physical);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = make_tokens(2);
  const Map maps[] = {kMap, {{1}, {0, 3}, {6}, {2, 5}, {4}, {7}}};
  for (int call = 0; call < 6; ++call) {
    const Map& map = maps[call % 2];
    const MapTensor tensor(map);
    const std::vector<RankOutput> outputs =
        group.forward(tokens, [&](uint32_t, ForwardArgs& args) { args.expert_map = tensor.view(); });
    for (uint32_t rank = 0; rank < 2; ++rank) {
      reference::Input input = tokens[rank].input();
      input.options.rank = rank;
      input.options.expert_map = map;
      expect_matches_oracle(physical.layer(), input, outputs[rank]);
    }
  }
}

TEST_P(ExpertMap, WhatItMustNotHoldIsRefusedByName) {
  const TestWeights physical = gen_weights(kPhysical, 4);
  LayerGroup group(mapped_config(), 2, physical);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = make_tokens(2);
  const MapTensor good(kMap);
  const auto forward = [&](const TensorView& map) {
    return group.forward(tokens,
                         [&](uint32_t rank, ForwardArgs& args) { args.expert_map = rank == 1 ? map : good.view(); });
  };
  Map bad = kMap;
  bad[2][1] = 8;
  const MapTensor too_high(bad);
  expect_refused(
      forward(too_high.view()), 1, Code::kInvalidArgument,
      "expert_map must hold physical experts in [0, 8) or -1, got 8 for copy 1 of logical expert 2 at rank 1");
  bad = kMap;
  bad[5] = {-7};
  const MapTensor negative(bad);
  expect_refused(forward(negative.view()), 1, Code::kInvalidArgument,
                 "got -7 for copy 0 of logical expert 5 at rank 1");
  expect_refused(forward({}), 1, Code::kInvalidArgument, "expert_map must be given, got an empty view");
  TensorView view = good.view();
  view.shape[0] = 5;
  expect_refused(forward(view), 1, Code::kInvalidArgument, "expert_map must have shape [6, 3], got [5, 3]");
  view = good.view();
  view.dtype = DType::kInt64;
  expect_refused(forward(view), 1, Code::kInvalidArgument, "expert_map must be int32, got int64");

  std::vector<TestTokens> too_high_id = tokens;
  too_high_id[0].topk_ids[5] = 6;  // a physical expert, but no logical one
  expect_refused(group.forward(too_high_id, [&](uint32_t, ForwardArgs& args) { args.expert_map = good.view(); }), 0,
                 Code::kInvalidArgument,
                 "topk_ids must be -1 (masked) or an expert in [0, 6), got 6 at rank 0, token 2, slot 1");
  expect_all_ok(forward(good.view()));

  LayerGroup plain(config(kPhysical, 48), 1, physical);
  expect_refused(
      plain.forward({gen_tokens(kPhysical, 4, 1)}, [&](uint32_t, ForwardArgs& args) { args.expert_map = good.view(); }),
      0, Code::kInvalidArgument, "expert_map must be absent, since the layer was created with num_logical_experts 0");
}

class ReceiveCounts : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, ReceiveCounts, ::testing::ValuesIn(backend_names()), backend_label);

template <class T>
void expect_counts_add_up(const LayerConfig& layer_config, const TestWeights& weights, DType dtype) {
  constexpr uint32_t kNumRanks = 2;
  const uint32_t local = kPhysical.num_experts / kNumRanks;
  LayerGroup group(layer_config, kNumRanks, weights);
  expect_all_ok(group.created());
  std::vector<std::vector<T>> counts(kNumRanks, std::vector<T>(local, 100));
  std::vector<std::vector<T>> expected = counts;
  const auto count = [&](uint32_t rank, ForwardArgs& args) {
    args.cumulative_recv_counts = TensorView::dense(counts[rank].data(), dtype, {local});
  };
  for (uint64_t call = 0; call < 3; ++call) {
    std::vector<TestTokens> tokens = split_tokens(kPhysical, gen_tokens(kPhysical, 20 + call, call), kNumRanks);
    for (const TestTokens& part : tokens)
      for (const int64_t id : part.topk_ids)
        ++expected[static_cast<size_t>(id / local)][static_cast<size_t>(id % local)];
    expect_all_ok(group.forward(tokens, count));
    EXPECT_EQ(counts, expected);
    tokens[1].topk_ids[0] = 8;  // a call that is refused counts nothing
    EXPECT_FALSE(group.forward(tokens, count)[0].status.ok());
    EXPECT_EQ(counts, expected);
    expect_all_ok(group.forward(split_tokens(kPhysical, gen_tokens(kPhysical, 5, 1), kNumRanks)));  // nor one without
  }
}

TEST_P(ReceiveCounts, AddUpOverCallsThatHappen) {
  TestWeights weights = gen_weights(kPhysical, 4);
  weights.shared = std::make_shared<TestWeights>(gen_weights({128, 64, 2, 1}, 3));
  LayerConfig layer_config = config(kPhysical, 32);
  layer_config.num_shared_experts = 2;  // which are not counted
  expect_counts_add_up<int32_t>(layer_config, weights, DType::kInt32);
  expect_counts_add_up<int64_t>(layer_config, weights, DType::kInt64);
}

}  // namespace
}  // namespace megamoe::test
