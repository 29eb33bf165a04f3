// FP32 scales, powers of two, exponent bytes: right where declared, refused where the declaration does not fit.
#include <cmath>

#include "core/formats/ue8m0.h"
#include "support/backend_test.h"
#include "support/placed_calls.h"

namespace megamoe::test {
namespace {

class ScaleFormats : public BackendTest {
 protected:
  static constexpr MoeShape kShape{512, 256, 2, 1};
  static constexpr int64_t kTokens = 4, kGroups = kShape.hidden / 128;

  void SetUp() override {
    BackendTest::SetUp();
    if (IsSkipped()) return;
    tokens_ = gen_tokens(kShape, kTokens, 9);
    codes_ = quantize_tokens(kShape, tokens_).codes;
    odd_.assign(kTokens * kGroups, 0.7f / 448.0f);
    for (int64_t i = 0; i < kTokens * kGroups; ++i) {
      bytes_.push_back(static_cast<uint8_t>(118 + i % 3));
      powers_.push_back(core::ue8m0_decode(bytes_.back()));
    }
    group_ = std::make_unique<LayerGroup>(config(kShape, 8), 2, weights_);
    expect_all_ok(group_->created());
  }

  /// A call on two ranks; rank 1 gets these scales, rank 0 sound ones.
  std::vector<RankOutput> forward(const void* scales, DType dtype, ScaleFormat format) {
    return group_->forward({tokens_, tokens_}, [&](uint32_t rank, ForwardArgs& args) {
      args.hidden_states = TensorView::dense(codes_.data(), DType::kFloat8E4M3, {kTokens, kShape.hidden});
      args.hidden_states_scale = rank == 1 ? TensorView::dense(scales, dtype, {kTokens, kGroups})
                                           : TensorView::dense(odd_.data(), DType::kFloat32, {kTokens, kGroups});
      args.scale_format = rank == 1 ? format : ScaleFormat::kFloat32;
    });
  }

  void expect_right(const void* scales, DType dtype, ScaleFormat format, const std::vector<float>& values) {
    const std::vector<RankOutput> outputs = forward(scales, dtype, format);
    reference::Input input = tokens_.input();
    input.hidden_bf16 = nullptr;
    input.hidden_codes = codes_.data();
    input.hidden_scales = values.data();
    expect_matches_oracle(weights_.layer(), input, outputs[1]);
  }

  void expect_refused_then_right(const void* scales, DType dtype, ScaleFormat format, const std::string& reason) {
    expect_refused(forward(scales, dtype, format), 1, Code::kInvalidArgument, reason);
    expect_right(odd_.data(), DType::kFloat32, ScaleFormat::kFloat32, odd_);
  }

  const TestWeights weights_ = gen_weights(kShape, 14);
  TestTokens tokens_;
  std::vector<uint8_t> codes_, bytes_;
  std::vector<float> odd_, powers_;  ///< No powers of two; the same as bytes_.
  std::unique_ptr<LayerGroup> group_;
};
INSTANTIATE_TEST_SUITE_P(Backends, ScaleFormats, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(ScaleFormats, OfTokensAreRightWhereDeclared) {
  expect_right(odd_.data(), DType::kFloat32, ScaleFormat::kFloat32, odd_);
  expect_right(powers_.data(), DType::kFloat32, ScaleFormat::kFloat32, powers_);
  expect_right(powers_.data(), DType::kFloat32, ScaleFormat::kUe8m0, powers_);
  expect_right(bytes_.data(), DType::kFloat8E8M0, ScaleFormat::kUe8m0, powers_);
}

TEST_P(ScaleFormats, OfTokensAreRefusedWhereTheDeclarationDoesNotFit) {
  expect_refused_then_right(odd_.data(), DType::kFloat32, ScaleFormat::kUe8m0,
                            "hidden_states_scale was declared as ue8m0, so every scale must be a power of two");
  expect_refused_then_right(bytes_.data(), DType::kFloat8E8M0, ScaleFormat::kFloat32,
                            "hidden_states_scale was declared as float32 scales, got float8_e8m0");
  expect_refused_then_right(odd_.data(), DType::kFloat32, ScaleFormat::kUnspecified,
                            "the scale format of hidden_states_scale must be stated");
  for (const DType dtype : {DType::kUInt8, DType::kInt32, DType::kBFloat16, DType::kFloat8E4M3})
    expect_refused_then_right(odd_.data(), dtype, ScaleFormat::kUe8m0, "hidden_states_scale must be float32 or float8");
}

TEST_P(ScaleFormats, ThatAreGivenWithBf16TokensAreRefused) {
  const std::vector<RankOutput> outputs = group_->forward({tokens_, tokens_}, [&](uint32_t rank, ForwardArgs& args) {
    if (rank == 1) args.hidden_states_scale = TensorView::dense(odd_.data(), DType::kFloat32, {kTokens, kGroups});
  });
  expect_refused(outputs, 1, Code::kInvalidArgument, "hidden_states_scale must be absent for bfloat16 tokens");
}

TEST_P(ScaleFormats, OfWeightsMayDifferFromThoseOfTokens) {
  // Weights with exponent bytes, tokens with FP32 scales.
  TestWeights weights = weights_;
  std::vector<uint8_t> w13_bytes, w2_bytes;
  for (float& scale : weights.w13_scale) {
    w13_bytes.push_back(core::ue8m0_encode_up(scale));
    scale = core::ue8m0_decode(w13_bytes.back());
  }
  for (float& scale : weights.w2_scale) {
    w2_bytes.push_back(core::ue8m0_encode_up(scale));
    scale = core::ue8m0_decode(w2_bytes.back());
  }
  PlacedCalls calls(GetParam());
  expect_all_ok(on_each_rank(2, [&](uint32_t rank) {
    ExpertWeights mine = rank_weights(weights, rank, 2);
    mine.w13_scale.data = w13_bytes.data() + rank * weights.w13_scales_per_expert();
    mine.w2_scale.data = w2_bytes.data() + rank * weights.w2_scales_per_expert();
    mine.w13_scale.dtype = mine.w2_scale.dtype = DType::kFloat8E8M0;
    mine.scale_format = ScaleFormat::kUe8m0;
    return calls.load_weights(group_->layer(rank), mine);
  }));
  expect_matches_oracle(weights, std::nullopt, {tokens_, tokens_}, group_->forward({tokens_, tokens_}));
}

TEST_P(ScaleFormats, OfWeightsAreRefusedWhereTheDeclarationDoesNotFit) {
  const std::vector<RankOutput> right = group_->forward({tokens_, tokens_});
  PlacedCalls calls(GetParam());
  const auto load = [&](const std::function<void(ExpertWeights&)>& change) {
    ExpertWeights mine = rank_weights(weights_, 0, 2);
    change(mine);
    return calls.load_weights(group_->layer(0), mine);
  };
  const std::pair<std::function<void(ExpertWeights&)>, const char*> cases[] = {
      {[](ExpertWeights& w) { w.scale_format = ScaleFormat::kUe8m0; },
       "w13_scale was declared as ue8m0, so every scale must be a power of two"},
      {[](ExpertWeights& w) { w.scale_format = ScaleFormat::kUnspecified; },
       "the scale format of w13_scale must be stated"},
      {[](ExpertWeights& w) { w.w2_scale.dtype = DType::kFloat8E8M0; },
       "w2_scale was declared as float32 scales, got float8_e8m0"},
      {[](ExpertWeights& w) { w.w13_scale.dtype = DType::kBFloat16; }, "w13_scale must be float32 or float8"},
  };
  for (const auto& [change, reason] : cases) {
    const Status status = load(change);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  }
  expect_same_bits(right, group_->forward({tokens_, tokens_}));
}

}  // namespace
}  // namespace megamoe::test
