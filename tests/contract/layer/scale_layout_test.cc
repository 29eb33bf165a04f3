// The major order of scale matrices: told by strides for tokens, by the shape for weights, never guessed.
#include <cmath>

#include "support/backend_test.h"
#include "support/placed_calls.h"

namespace megamoe::test {
namespace {

class ScaleLayout : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, ScaleLayout, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(ScaleLayout, OfTokensMayBeRowMajorOrGroupMajor) {
  constexpr int64_t kTokens = 7;  // not a multiple of four, as packed group-major scales would want
  for (const uint32_t hidden : {512u, 128u}) {
    const MoeShape shape{hidden, 128, 2, 1};
    const int64_t groups = hidden / 128;
    const TestWeights weights = gen_weights(shape, 15);
    const TestTokens tokens = gen_tokens(shape, kTokens, 4);
    const std::vector<uint8_t> codes = quantize_tokens(shape, tokens).codes;
    std::vector<float> row_major(static_cast<size_t>(kTokens * groups)), group_major(row_major.size());
    std::vector<float> padded(static_cast<size_t>(8 * groups), std::nanf(""));
    for (int64_t row = 0; row < kTokens; ++row)
      for (int64_t group = 0; group < groups; ++group) {
        const float scale = std::ldexp(1.0f, static_cast<int>((row + 3 * group) % 5) - 8);
        row_major[static_cast<size_t>(row * groups + group)] = scale;
        group_major[static_cast<size_t>(group * kTokens + row)] = scale;
        padded[static_cast<size_t>(group * 8 + row)] = scale;
      }
    LayerGroup group(config(shape, 8), 1, weights);
    expect_all_ok(group.created());
    const auto forward = [&](const std::vector<float>& scales, int64_t row_stride, int64_t group_stride) {
      return group.forward({tokens}, [&](uint32_t, ForwardArgs& args) {
        args.hidden_states = TensorView::dense(codes.data(), DType::kFloat8E4M3, {kTokens, int64_t{hidden}});
        args.hidden_states_scale = TensorView::dense(scales.data(), DType::kFloat32, {kTokens, groups});
        args.hidden_states_scale.strides = {row_stride, group_stride};
        args.scale_format = ScaleFormat::kFloat32;
      });
    };
    const std::vector<RankOutput> right = forward(row_major, groups, 1);
    reference::Input input = tokens.input();
    input.hidden_bf16 = nullptr;
    input.hidden_codes = codes.data();
    input.hidden_scales = row_major.data();
    expect_matches_oracle(weights.layer(), input, right[0]);
    expect_same_bits(right, forward(group_major, 1, kTokens));
    expect_same_bits(right, forward(padded, 1, 8));
    if (groups == 1) continue;  // the blind case: both orders are the same memory
    EXPECT_NE(right[0].rows, forward(group_major, groups, 1)[0].rows) << "the strides were not used";

    // The transposed shape is no declaration of an order.
    const std::vector<RankOutput> transposed = group.forward({tokens}, [&](uint32_t, ForwardArgs& args) {
      args.hidden_states = TensorView::dense(codes.data(), DType::kFloat8E4M3, {kTokens, int64_t{hidden}});
      args.hidden_states_scale = TensorView::dense(group_major.data(), DType::kFloat32, {groups, kTokens});
      args.scale_format = ScaleFormat::kFloat32;
    });
    expect_refused(transposed, 0, Code::kInvalidArgument, "hidden_states_scale must have shape [7, 4], got [4, 7]");
  }
}

/// Scales 2^(row - 2 * column) of the gate, up and w2 grids.
TestWeights weights_with_distinct_scales(const MoeShape& shape) {
  TestWeights weights = gen_weights(shape, 16);
  const auto fill = [](float* scales, uint64_t rows, uint64_t columns, uint64_t first_row, int shift) {
    for (uint64_t row = 0; row < rows; ++row)
      for (uint64_t column = 0; column < columns; ++column)
        scales[row * columns + column] =
            std::ldexp(1.0f, static_cast<int>(first_row + row) - 2 * static_cast<int>(column) - shift);
  };
  const uint64_t h = shape.hidden / 128, i = shape.intermediate / 128;
  for (uint64_t expert = 0; expert < shape.num_experts; ++expert) {
    fill(weights.w13_scale.data() + expert * 2 * i * h, 2 * i, h, 0, 10);
    fill(weights.w2_scale.data() + expert * h * i, h, i, 0, 10);
  }
  return weights;
}

TEST_P(ScaleLayout, OfWeightsIsRightInBothShapesAndRefusedTransposed) {
  PlacedCalls calls(GetParam());
  const MoeShape shape{640, 384, 2, 1};  // grids [2][3][5] and [5][3]
  const TestWeights weights = weights_with_distinct_scales(shape);
  const std::vector<TestTokens> tokens = {gen_tokens(shape, 5, 3)};
  LayerGroup group(config(shape, 8), 1, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> right = group.forward(tokens);
  expect_matches_oracle(weights, std::nullopt, tokens, right);

  ExpertWeights one_grid = rank_weights(weights, 0, 1);
  one_grid.w13_scale = TensorView::dense(weights.w13_scale.data(), DType::kFloat32, {2, 6, 5});
  const Status one_grid_status = calls.load_weights(group.layer(0), one_grid);
  EXPECT_TRUE(one_grid_status.ok()) << one_grid_status.message();
  expect_same_bits(right, group.forward(tokens));

  ExpertWeights transposed = rank_weights(weights, 0, 1);
  transposed.w2_scale = TensorView::dense(weights.w2_scale.data(), DType::kFloat32, {2, 3, 5});
  const Status status = calls.load_weights(group.layer(0), transposed);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("w2_scale must have shape [2, 5, 3], got [2, 3, 5]"), std::string::npos)
      << status.message();
  expect_same_bits(right, group.forward(tokens));
}

TEST_P(ScaleLayout, OfASquareGridIsRightOnlyAsDeclared) {
  PlacedCalls calls(GetParam());
  const MoeShape shape{512, 512, 2, 1};  // w2's grid is 4 x 4: the wrong order has the right shape
  const TestWeights weights = weights_with_distinct_scales(shape);
  TestWeights wrong = weights;
  for (uint64_t expert = 0; expert < 2; ++expert)
    for (uint64_t row = 0; row < 4; ++row)
      for (uint64_t column = 0; column < 4; ++column)
        wrong.w2_scale[expert * 16 + column * 4 + row] = weights.w2_scale[expert * 16 + row * 4 + column];
  const std::vector<TestTokens> tokens = {gen_tokens(shape, 5, 3)};
  LayerGroup group(config(shape, 8), 1, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> right = group.forward(tokens);
  expect_matches_oracle(weights, std::nullopt, tokens, right);

  // Column-major memory declared as such is refused, since scales are read in place; declared as row-major it is
  // another matrix, and gives that matrix's result.
  ExpertWeights strided = rank_weights(wrong, 0, 1);
  strided.w2_scale.strides = {16, 1, 4};
  const Status status = calls.load_weights(group.layer(0), strided);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("w2_scale must be dense and row-major"), std::string::npos) << status.message();
  expect_same_bits(right, group.forward(tokens));
  ASSERT_TRUE(calls.load_weights(group.layer(0), rank_weights(wrong, 0, 1)).ok());
  const std::vector<RankOutput> other = group.forward(tokens);
  expect_matches_oracle(wrong, std::nullopt, tokens, other);
  EXPECT_NE(right[0].rows, other[0].rows);
}

}  // namespace
}  // namespace megamoe::test
