// The same bits on every run, under load, after a restart, and for a token wherever it stands; sums keep FP32.
#include <atomic>
#include <thread>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Determinism : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Determinism, ::testing::ValuesIn(backend_names()), backend_label);

/// A thread that computes and sleeps in turns, while it lives.
class BackgroundLoad {
 public:
  BackgroundLoad()
      : thread_([this] {
          for (uint64_t draw = 1; !stop_; draw = splitmix64(draw)) {
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(draw % 3000);
            while (std::chrono::steady_clock::now() < until) sink_ = splitmix64(sink_);
            std::this_thread::sleep_for(std::chrono::microseconds(draw / 3000 % 3000));
          }
        }) {}
  ~BackgroundLoad() { stop_ = true; }
  BackgroundLoad(const BackgroundLoad&) = delete;
  BackgroundLoad& operator=(const BackgroundLoad&) = delete;

 private:
  std::atomic<bool> stop_{false};
  uint64_t sink_ = 1;
  std::jthread thread_;
};

constexpr MoeShape kShape{512, 256, 32, 8};

TEST_P(Determinism, FiftyCallsUnderLoadAndAFreshHandleGiveTheSameBits) {
  const TestWeights weights = gen_weights(kShape, 41);
  for (const uint32_t ranks : {2u, 8u}) {
    std::vector<TestTokens> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(gen_tokens(kShape, 33, rank));
    std::vector<RankOutput> first;
    {
      LayerGroup group(config(kShape, 64), ranks, weights);
      expect_all_ok(group.created());
      first = group.forward(tokens);
      const BackgroundLoad load;
      for (int call = 1; call < 50; ++call) expect_same_bits(first, group.forward(tokens));
    }
    LayerGroup restarted(config(kShape, 64), ranks, weights);
    expect_all_ok(restarted.created());
    expect_same_bits(first, restarted.forward(tokens));
    if (ranks == 2) expect_matches_oracle(weights, std::nullopt, {tokens[0]}, {first[0]});
  }
}

TEST_P(Determinism, ATokensBitsDoNotDependOnWhereItStandsOrWithWhom) {
  const TestWeights weights = gen_weights(kShape, 41);
  const TestTokens token = gen_tokens(kShape, 1, 99);
  LayerGroup group(config(kShape, 256), 2, weights);
  expect_all_ok(group.created());
  const TestTokens none = gen_tokens(kShape, 0, 0);
  const std::vector<uint16_t> right = row_of(kShape, group.forward({token, none})[0], 0);
  const auto expect_row = [&](const std::vector<TestTokens>& tokens, uint32_t rank, uint64_t row) {
    const std::vector<RankOutput> outputs = group.forward(tokens);
    expect_all_ok(outputs);
    EXPECT_EQ(row_of(kShape, outputs[rank], row), right) << "rank " << rank << " row " << row;
  };
  expect_row({none, token}, 1, 0);
  expect_row({join_tokens({token, gen_tokens(kShape, 32, 5)}), none}, 0, 0);
  expect_row({join_tokens({gen_tokens(kShape, 32, 5), token}), none}, 0, 32);
  expect_row({gen_tokens(kShape, 3, 6), join_tokens({gen_tokens(kShape, 150, 7), token, gen_tokens(kShape, 50, 8)})}, 1,
             150);
}

TEST_P(Determinism, SumsOfSlotsAreNotRoundedToBf16OnTheWay) {
  // Eight experts write silu(1) times weights 1, then seven times 2^-9. A BF16 running sum would stay at 0.730469.
  const MoeShape shape{256, 128, 8, 8};
  TestWeights weights = tag_weights(shape);
  for (uint64_t expert = 0; expert < 8; ++expert)
    for (uint64_t row = 0; row < shape.hidden; ++row)
      weights.w2[expert * weights.w2_elements_per_expert() + row * shape.intermediate] = core::e4m3_encode(1.0f);
  TestTokens tokens = tag_tokens(shape, 1, 125);  // the largest tag: a = 1
  ASSERT_EQ(tokens.hidden[1], core::bf16_encode(1.0f));
  for (uint32_t slot = 0; slot < 8; ++slot) {
    tokens.topk_ids[slot] = slot;
    tokens.topk_weights[slot] = slot == 0 ? 1.0f : 1.0f / 512;
  }
  LayerGroup group(config(shape, 1), 2, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> outputs = group.forward({tokens, tag_tokens(shape, 0)});
  expect_all_ok(outputs);
  for (const uint16_t bits : outputs[0].rows) ASSERT_NEAR(core::bf16_decode(bits), 0.741054, 0.0039);
}

}  // namespace
}  // namespace megamoe::test
