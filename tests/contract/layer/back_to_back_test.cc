// Many calls in a row on one handle, of random size and routing: the same bits as a fresh handle gives.
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class BackToBack : public BackendTest {
 protected:
  static std::vector<std::vector<TestTokens>> random_calls(uint32_t num_calls, uint32_t num_ranks, uint64_t seed) {
    std::vector<std::vector<TestTokens>> calls(num_calls);
    for (uint32_t i = 0; i < num_calls; ++i) {
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        const uint64_t draw = splitmix64(seed + i * num_ranks + rank);
        const uint64_t num_tokens = draw % 4 == 0 ? 0 : (draw >> 8) % (kCapacity + 1);
        calls[i].push_back(gen_tokens(kShape, num_tokens, seed + i * num_ranks + rank));
        // Some calls favour one expert, some mask slots.
        if (draw % 16 == 1)
          for (int64_t& id : calls[i].back().topk_ids) id = static_cast<int64_t>(i % kShape.num_experts);
        if (draw % 16 == 2)
          for (size_t slot = 0; slot < calls[i].back().topk_ids.size(); slot += 3) calls[i].back().topk_ids[slot] = -1;
      }
    }
    return calls;
  }

  void expect_equal_to_fresh_handles(uint32_t num_calls, uint32_t num_ranks, const LayerConfig& layer_config) {
    const TestWeights weights = gen_weights(kShape, 2);
    const std::vector<std::vector<TestTokens>> calls = random_calls(num_calls, num_ranks, 1000);
    LayerGroup used(layer_config, num_ranks, weights);
    expect_all_ok(used.created());
    const std::vector<std::vector<RankOutput>> outputs = used.forward_sequence(calls);
    for (uint32_t i = 0; i < num_calls; ++i) {
      LayerGroup fresh(layer_config, num_ranks, weights);
      expect_same_bits(fresh.forward(calls[i]), outputs[i]);
      if (HasFailure()) FAIL() << "call " << i;
    }
  }

  static constexpr MoeShape kShape{128, 64, 8, 3};
  static constexpr uint32_t kCapacity = 12;
};
INSTANTIATE_TEST_SUITE_P(Backends, BackToBack, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(BackToBack, CallsWithSmallRingsEqualThoseOfFreshHandles) {
  LayerConfig small = config(kShape, kCapacity);
  small.block_rows = block_rows().front();
  small.unit_blocks = small.token_ring_blocks = small.act_ring_blocks = 1;
  small.num_threads = 2;
  expect_equal_to_fresh_handles(MEGAMOE_NUM_CALLS / 4, 4, small);
}

TEST_P(BackToBack, CallsEqualThoseOfFreshHandles) {
  expect_equal_to_fresh_handles(MEGAMOE_NUM_CALLS, 2, config(kShape, kCapacity));
}

}  // namespace
}  // namespace megamoe::test
