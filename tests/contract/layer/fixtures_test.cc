// Checkpoints that Hugging Face transformers wrote, with what its own layer computed: right, and the same bits on any
// number of ranks.
#include <algorithm>
#include <string>

#include "core/formats/bf16.h"
#include "core/reference/row_error.h"
#include "io/layer_files.h"
#include "io/moe_weights.h"
#include "support/backend_test.h"
#include "support/fixture_folder.h"

namespace megamoe::test {
namespace {

class Fixtures : public BackendTest {
 protected:
  struct Limits {
    double max_row, mean_row;
  };

  void expect_right(const std::string& name, const std::string& compare, const Limits& limits) {
    const std::string folder = fixture_folder(name);
    load(folder);
    if (HasFatalFailure()) return;
    std::vector<RankOutput> first;
    for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
      LayerGroup group(config(weights_.shape, 128), ranks, weights_);
      expect_all_ok(group.created());
      const std::vector<RankOutput> outputs = group.forward(split_tokens(weights_.shape, tokens_, ranks));
      if (first.empty()) first = outputs;
      expect_same_bits(first, outputs);
    }
    expect_matches_oracle(weights_, std::nullopt, {tokens_}, first);

    const Result<io::FloatRows> unquantised = io::read_compare(folder + "/moe_layer_io.safetensors", compare);
    ASSERT_TRUE(unquantised.ok()) << unquantised.status().message();
    const io::FloatRows& rows = unquantised.value();
    ASSERT_EQ(rows.num_rows, tokens_.num_tokens);
    ASSERT_EQ(rows.num_cols, weights_.shape.hidden);
    reference::ErrorSummary summary;
    for (uint64_t row = 0; row < rows.num_rows; ++row)
      summary.add(row,
                  reference::row_error_of(
                      rows.num_cols,
                      [&](uint64_t i) { return double{core::bf16_decode(first[0].rows[row * rows.num_cols + i])}; },
                      [&](uint64_t i) { return double{rows.values[row * rows.num_cols + i]}; }));
    EXPECT_EQ(summary.rows_checked, 123u);
    EXPECT_LE(summary.max_row_rel_l2, limits.max_row) << "row " << summary.worst_row;
    EXPECT_LE(summary.mean_row_rel_l2, limits.mean_row);
    // E4M3 costs a few percent; much less would mean that nothing was quantised.
    EXPECT_GE(summary.mean_row_rel_l2, 1e-2);
  }

 private:
  void load(const std::string& folder) {
    const Result<io::LayerWeights> loaded = io::load_moe_layer(folder, 1);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const io::LayerWeights& from = loaded.value();
    ASSERT_EQ(from.shape(), (MoeShape{256, 128, 16, 4}));
    const auto copy = [](const auto& buffer) {
      return std::vector<std::remove_cvref_t<decltype(buffer[0])>>(buffer.data(), buffer.data() + buffer.size());
    };
    weights_ = {from.shape(), copy(from.w13), copy(from.w13_scale), copy(from.w2), copy(from.w2_scale)};
    const Result<io::LayerInputs> inputs = io::read_layer_inputs(folder + "/moe_layer_io.safetensors");
    ASSERT_TRUE(inputs.ok()) << inputs.status().message();
    tokens_.num_tokens = inputs.value().num_tokens;
    tokens_.hidden = copy(inputs.value().hidden_states);
    tokens_.topk_ids = copy(inputs.value().topk_ids);
    tokens_.topk_weights = copy(inputs.value().topk_weights);
  }

  TestWeights weights_;
  TestTokens tokens_;
};
INSTANTIATE_TEST_SUITE_P(Backends, Fixtures, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(Fixtures, TheFp8CheckpointIsRight) {
  expect_right("deepseek_v3_fp8", "routed_out_fp32_dequant_weights", {8e-2, 5e-2});
}

TEST_P(Fixtures, TheBf16CheckpointIsRight) { expect_right("deepseek_v3", "experts_out", {1.1e-1, 7.5e-2}); }

}  // namespace
}  // namespace megamoe::test
