// What must never change a bit of the result: ranks, threads, block and ring sizes, unit, lag, capacity, id types and
// strides.
#include <numeric>

#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Invariance : public BackendTest {
 protected:
  /// Row counts per expert from 0 to dozens, so that blocks are partly full and some experts span several.
  static TestTokens skewed_tokens(uint64_t num_tokens, uint64_t seed) {
    TestTokens tokens = gen_tokens(kShape, num_tokens, seed);
    for (int64_t& id : tokens.topk_ids) id = id * id / kShape.num_experts;
    return tokens;
  }
  /// Several blocks of one expert, also where the smallest block has 64 rows.
  void fill_several_blocks() { all_ = skewed_tokens(uint64_t{block_rows().front()} * 8, 17); }

  void expect_same_under(const std::string& what, const std::function<void(LayerConfig&)>& change) {
    SCOPED_TRACE(what);
    for (const uint32_t ranks : {1u, 2u}) {
      LayerConfig changed = config(kShape, std::max<uint32_t>(64, static_cast<uint32_t>(all_.num_tokens)));
      change(changed);
      LayerGroup group(changed, ranks, weights_);
      expect_all_ok(group.created());
      if (::testing::Test::HasFailure()) return;
      const std::vector<RankOutput> outputs = group.forward(split_tokens(kShape, all_, ranks));
      if (right_.empty()) {
        right_ = outputs;
        expect_matches_oracle(weights_, std::nullopt, {all_}, outputs);
      }
      expect_same_bits(right_, outputs);
      expect_same_bits(right_, group.forward(split_tokens(kShape, all_, ranks)));
    }
  }

  static constexpr MoeShape kShape{256, 192, 16, 4};
  const TestWeights weights_ = gen_weights(kShape, 31);
  TestTokens all_ = skewed_tokens(61, 17);
  std::vector<RankOutput> right_;
};
INSTANTIATE_TEST_SUITE_P(Backends, Invariance, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(Invariance, OfTheNumberOfRanks) {
  std::vector<RankOutput> first;
  for (const uint32_t ranks : {1u, 2u, 4u, 8u, 16u}) {
    LayerGroup group(config(kShape, 64), ranks, weights_);
    expect_all_ok(group.created());
    const std::vector<RankOutput> outputs = group.forward(split_tokens(kShape, all_, ranks));
    if (first.empty()) first = outputs;
    expect_same_bits(first, outputs);
  }
  expect_matches_oracle(weights_, std::nullopt, {all_}, first);
}

TEST_P(Invariance, OfWhichRankHoldsATokenAndHowUnevenly) {
  LayerGroup one(config(kShape, 64), 1, weights_);
  LayerGroup four(config(kShape, 64), 4, weights_);
  expect_all_ok(one.created());
  expect_all_ok(four.created());
  const std::vector<RankOutput> right = one.forward({all_});
  for (const std::vector<uint64_t>& counts :
       {std::vector<uint64_t>{61, 0, 0, 0}, {0, 0, 0, 61}, {1, 40, 0, 20}, {17, 1, 42, 1}}) {
    // split_tokens makes 61 parts of one token each; deal them out by count.
    const std::vector<TestTokens> single = split_tokens(kShape, all_, 61);
    std::vector<TestTokens> tokens;
    auto next = single.begin();
    for (const uint64_t count : counts) {
      tokens.push_back(join_tokens({next, next + static_cast<int64_t>(count)}));
      next += static_cast<int64_t>(count);
    }
    expect_same_bits(right, four.forward(tokens));
  }
}

TEST_P(Invariance, OfThreads) {
  for (const uint32_t threads : {1u, 2u, 3u, 5u})
    expect_same_under(std::to_string(threads) + " threads", [&](LayerConfig& c) { c.num_threads = threads; });
}

TEST_P(Invariance, OfBlockRows) {
  for (const uint32_t rows : block_rows())
    expect_same_under(std::to_string(rows) + " rows", [&](LayerConfig& c) { c.block_rows = rows; });
}

TEST_P(Invariance, OfTheSmallestRings) {
  fill_several_blocks();
  expect_same_under("default rings", [](LayerConfig&) {});
  for (const uint32_t threads : {1u, 3u}) {
    for (const uint32_t unit : {1u, 2u, 4u}) {
      expect_same_under("rings of one unit of " + std::to_string(unit), [&](LayerConfig& c) {
        c.num_threads = threads;
        c.block_rows = block_rows().front();
        c.unit_blocks = unit;
        c.token_ring_blocks = c.act_ring_blocks = unit;
      });
    }
    expect_same_under("a small token ring only", [&](LayerConfig& c) {
      c.num_threads = threads;
      c.block_rows = block_rows().front();
      c.unit_blocks = 1;
      c.token_ring_blocks = 1;
    });
    expect_same_under("a small activation ring only", [&](LayerConfig& c) {
      c.num_threads = threads;
      c.block_rows = block_rows().front();
      c.unit_blocks = 1;
      c.act_ring_blocks = 1;
    });
  }
}

TEST_P(Invariance, OfUnitAndLag) {
  fill_several_blocks();
  for (const uint32_t unit : {1u, 3u, 16u})
    for (const uint32_t lag : {1u, 2u, 9u})
      expect_same_under("unit " + std::to_string(unit) + " lag " + std::to_string(lag), [&](LayerConfig& c) {
        c.block_rows = block_rows().front();
        c.unit_blocks = unit;
        c.lag_units = lag;
      });
}

TEST_P(Invariance, OfCapacity) {
  for (const uint32_t capacity : {61u, 64u, 100u, 5000u})
    expect_same_under("capacity " + std::to_string(capacity),
                      [&](LayerConfig& c) { c.max_tokens_per_rank = capacity; });
}

TEST_P(Invariance, OfTheIdsType) {
  LayerGroup group(config(kShape, 64), 2, weights_);
  expect_all_ok(group.created());
  const std::vector<TestTokens> tokens = split_tokens(kShape, all_, 2);
  const std::vector<RankOutput> right = group.forward(tokens);
  std::vector<std::vector<int32_t>> narrow(2);
  for (uint32_t rank = 0; rank < 2; ++rank)
    for (const int64_t id : tokens[rank].topk_ids) narrow[rank].push_back(static_cast<int32_t>(id));
  expect_same_bits(right, group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
    args.topk_ids.data = narrow[rank].data();
    args.topk_ids.dtype = DType::kInt32;
  }));
  for (std::vector<int32_t>& ids : narrow) ids[5] = -1;
  std::vector<TestTokens> masked = tokens;
  for (TestTokens& part : masked) part.topk_ids[5] = -1;
  expect_same_bits(group.forward(masked), group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
    args.topk_ids.data = narrow[rank].data();
    args.topk_ids.dtype = DType::kInt32;
  }));
}

/// Copies a dense [rows][columns] matrix into one with the given strides, the gaps filled with `gap`.
template <class T>
std::vector<T> spread(const std::vector<T>& dense, int64_t columns, int64_t row_stride, int64_t column_stride, T gap) {
  const int64_t rows = static_cast<int64_t>(dense.size()) / columns;
  std::vector<T> out(static_cast<size_t>((rows - 1) * row_stride + (columns - 1) * column_stride + 1), gap);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      out[static_cast<size_t>(row * row_stride + column * column_stride)] =
          dense[static_cast<size_t>(row * columns + column)];
  return out;
}

TEST_P(Invariance, OfStrides) {
  LayerGroup group(config(kShape, 64), 1, weights_);
  expect_all_ok(group.created());
  const std::vector<RankOutput> right = group.forward({all_});
  const int64_t h = kShape.hidden, k = kShape.top_k, t = static_cast<int64_t>(all_.num_tokens);
  const auto hidden = spread<uint16_t>(all_.hidden, h, h + 24, 1, 0x7fc0);
  const auto ids = spread<int64_t>(all_.topk_ids, k, 11, 2, 3);
  const auto ids_by_slot = spread<int64_t>(all_.topk_ids, k, 1, t + 2, 3);
  const auto router = spread<float>(all_.topk_weights, k, 1, t, 1e30f);
  std::vector<uint16_t> wide(static_cast<size_t>(t * (h + 8)), kPoison);
  for (const bool by_slot : {false, true}) {
    const std::vector<RankOutput> outputs = group.forward({all_}, [&](uint32_t, ForwardArgs& args) {
      args.hidden_states.data = const_cast<uint16_t*>(hidden.data());
      args.hidden_states.strides[0] = h + 24;
      args.topk_ids.data = const_cast<int64_t*>(by_slot ? ids_by_slot.data() : ids.data());
      args.topk_ids.strides = by_slot ? std::array<int64_t, 5>{1, t + 2} : std::array<int64_t, 5>{11, 2};
      args.topk_weights.data = const_cast<float*>(router.data());
      args.topk_weights.strides = {1, t};
      args.output.data = wide.data();
      args.output.strides[0] = h + 8;
    });
    expect_all_ok(outputs);
    std::vector<RankOutput> dense(1);
    for (int64_t row = 0; row < t; ++row) {
      const auto first = wide.begin() + row * (h + 8);
      dense[0].rows.insert(dense[0].rows.end(), first, first + h);
      EXPECT_EQ(std::vector<uint16_t>(first + h, first + h + 8), std::vector<uint16_t>(8, kPoison)) << "row " << row;
    }
    expect_same_bits(right, dense);
  }
}

TEST_P(Invariance, OfTokensThatShareOneRowOfMemory) {
  // Stride 0: the same hidden state for every token, as a broadcast view has it.
  LayerGroup group(config(kShape, 64), 1, weights_);
  expect_all_ok(group.created());
  TestTokens same = all_;
  for (uint64_t token = 1; token < same.num_tokens; ++token)
    std::copy_n(same.hidden.begin(), kShape.hidden, same.hidden.begin() + static_cast<int64_t>(token * kShape.hidden));
  expect_same_bits(group.forward({same}),
                   group.forward({all_}, [](uint32_t, ForwardArgs& args) { args.hidden_states.strides[0] = 0; }));
}

}  // namespace
}  // namespace megamoe::test
