// Every sentence with which the arguments of a call are refused.
#include <functional>

#include "api/registry.h"
#include "api/validate.h"
#include "support/layer_group.h"
#include "unit/api/refusal.h"

namespace megamoe::test {
namespace {

class ValidateForward : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 3;

  Status check(const std::function<void(ForwardArgs&)>& change) {
    output_.assign(tokens_.hidden.size(), 0);
    ForwardArgs args;
    args.hidden_states = TensorView::dense(tokens_.hidden.data(), DType::kBFloat16, {kTokens, 256});
    args.topk_ids = TensorView::dense(tokens_.topk_ids.data(), DType::kInt64, {kTokens, 2});
    args.topk_weights = TensorView::dense(tokens_.topk_weights.data(), DType::kFloat32, {kTokens, 2});
    args.output = TensorView::dense(output_.data(), DType::kBFloat16, {kTokens, 256});
    change(args);
    return api::validate_forward(args, config_, 1, *api::find_backend("cpu").value());
  }
  void expect_refused(const std::function<void(ForwardArgs&)>& spoil, const std::string& sentence) {
    expect_refusal(check(spoil), Code::kInvalidArgument, "moe_layer.forward: " + sentence);
  }
  void use_fp8(ForwardArgs& args) {
    args.hidden_states = TensorView::dense(quantized_.codes.data(), DType::kFloat8E4M3, {kTokens, 256});
    args.hidden_states_scale = TensorView::dense(quantized_.scales.data(), DType::kFloat32, {kTokens, 2});
    args.scale_format = ScaleFormat::kFloat32;
  }

  const MoeShape shape_{256, 192, 8, 2};
  LayerConfig config_ = small_config(shape_, 4);
  const TestTokens tokens_ = gen_tokens(shape_, kTokens, 1);
  const QuantizedTokens quantized_ = quantize_tokens(shape_, tokens_);
  std::vector<uint16_t> output_;
};

TEST_F(ValidateForward, AcceptsSoundArguments) {
  expect_ok(check([](auto&) {}));
  expect_ok(check([&](auto& a) { use_fp8(a); }));
  expect_ok(check([](auto& a) { a.topk_ids.dtype = DType::kInt32; }));
  expect_ok(check([](auto& a) { a.hidden_states.strides[0] = 0; }));
  expect_ok(check([](auto& a) { a.output.strides[0] = 300; }));
}

TEST_F(ValidateForward, ChecksReceiveCounts) {
  std::vector<int64_t> counts(16);
  const auto view = [&](DType dtype, int64_t n) { return TensorView::dense(counts.data(), dtype, {n}); };
  expect_ok(check([&](auto& a) { a.cumulative_recv_counts = view(DType::kInt32, 8); }));
  expect_ok(check([&](auto& a) { a.cumulative_recv_counts = view(DType::kInt64, 8); }));
  expect_refused([&](auto& a) { a.cumulative_recv_counts = view(DType::kFloat32, 8); },
                 "cumulative_recv_counts must be int32 or int64, got float32; convert it first");
  expect_refused([&](auto& a) { a.cumulative_recv_counts = view(DType::kInt32, 9); },
                 "cumulative_recv_counts must have shape [8], got [9]");
  expect_refused(
      [&](auto& a) {
        a.cumulative_recv_counts = view(DType::kInt32, 8);
        a.cumulative_recv_counts.strides[0] = 2;
      },
      "cumulative_recv_counts must be dense, got stride 2");
}

TEST_F(ValidateForward, ChecksWhatOnlySomeLayersHave) {
  const float weights[6] = {};
  const int32_t map[16] = {};
  expect_refused(
      [&](auto& a) {
        a.shared_weights = TensorView::dense(weights, DType::kFloat32, {3, 2});
      },
      "shared_weights must be absent, since the layer was created with num_shared_experts 0; drop it");
  expect_refused([&](auto& a) { a.expert_map = TensorView::dense(map, DType::kInt32, {8}); },
                 "expert_map must be absent, since the layer was created with num_logical_experts 0; drop it");
  config_.num_shared_experts = 2;
  config_.num_logical_experts = 8;
  const auto with_map = [&](const TensorView& view) { return [&](auto& a) { a.expert_map = view; }; };
  expect_ok(check(with_map(TensorView::dense(map, DType::kInt32, {8}))));
  expect_ok(check(with_map(TensorView::dense(map, DType::kInt32, {8, 2}))));
  expect_refused(with_map({}), "expert_map must be given, got an empty view");
  expect_refused(with_map(TensorView::dense(map, DType::kInt32, {8, 0})),
                 "expert_map must have between 1 and 8 copies of each logical expert, got shape [8, 0]");
  expect_refused(with_map(TensorView::dense(map, DType::kInt32, {8, 9})),
                 "expert_map must have between 1 and 8 copies of each logical expert, got shape [8, 9]");
  expect_refused(with_map(TensorView::dense(map, DType::kInt32, {2, 2, 2})),
                 "expert_map must have shape [8], got [2, 2, 2]");
  const TensorView good = TensorView::dense(map, DType::kInt32, {8});
  expect_ok(check([&](auto& a) {
    a.expert_map = good;
    a.shared_weights = TensorView::dense(weights, DType::kFloat32, {3, 2});
  }));
  expect_refused(
      [&](auto& a) {
        a.expert_map = good;
        a.shared_weights = TensorView::dense(weights, DType::kFloat32, {2, 3});
      },
      "shared_weights must have shape [3, 2], got [2, 3]");
}

TEST_F(ValidateForward, RefusesAStreamWhereThereIsNone) {
  expect_refusal(check([](auto& a) { a.cuda_stream = nullptr; }), Code::kNotSupported,
                 "moe_layer.forward: cuda_stream needs backend cuda, since backend cpu runs a call on the calling "
                 "thread; leave it unset");
}

TEST_F(ValidateForward, AcceptsNoTokensWithNullPointers) {
  expect_ok(check([](auto& a) {
    for (TensorView* view : {&a.hidden_states, &a.topk_ids, &a.topk_weights, &a.output}) {
      view->shape[0] = 0;
      view->data = nullptr;
    }
  }));
}

TEST_F(ValidateForward, RefusesTokensOfAnotherShapeOrType) {
  expect_refused([](auto& a) { a.hidden_states = {}; }, "hidden_states must have shape [tokens, 256], got []");
  expect_refused([](auto& a) { a.hidden_states.num_dims = 3; },
                 "hidden_states must have shape [tokens, 256], got [3, 256, 0]");
  expect_refused([](auto& a) { a.hidden_states.num_dims = 4096; },
                 "hidden_states must have shape [tokens, 256], got [3, 256, 0, 0, 0]");
  expect_refused([](auto& a) { a.hidden_states.shape[1] = 128; },
                 "hidden_states must have shape [3, 256], got [3, 128]");
  expect_refused([](auto& a) { a.hidden_states.shape[0] = -1; }, "the number of tokens must not be negative, got -1");
  expect_refused([](auto& a) { a.hidden_states.dtype = DType::kFloat32; },
                 "hidden_states must be bfloat16 or float8_e4m3fn, got float32; convert it first");
  expect_refused([](auto& a) { a.hidden_states.data = nullptr; },
                 "hidden_states must not be null, since it has 768 elements");
  expect_refused([](auto& a) { a.hidden_states.device = Device::kCuda; },
                 "hidden_states must lie in host memory for the cpu backend, got a CUDA device pointer");
}

TEST_F(ValidateForward, RefusesMoreTokensThanTheCapacity) {
  expect_refused([](auto& a) { a.hidden_states.shape[0] = 5; },
                 "the number of tokens must not exceed max_tokens_per_rank, got 5 tokens > 4; create the layer with a "
                 "larger capacity or split the batch");
}

TEST_F(ValidateForward, RefusesScalesThatAreMissingSuperfluousOrOfAnotherShape) {
  expect_refused(
      [&](auto& a) {
        use_fp8(a);
        a.hidden_states_scale = {};
      },
      "hidden_states_scale must be given, got an empty view");
  expect_refused(
      [&](auto& a) {
        use_fp8(a);
        a.hidden_states_scale.shape[1] = 3;
      },
      "hidden_states_scale must have shape [3, 2], got [3, 3]");
  expect_refused(
      [&](auto& a) {
        use_fp8(a);
        a.scale_format = ScaleFormat::kUnspecified;
      },
      "the scale format of hidden_states_scale must be stated (float32 or ue8m0), since FP8 scales of both kinds look "
      "alike");
  expect_refused(
      [&](auto& a) {
        a.hidden_states_scale = TensorView::dense(quantized_.scales.data(), DType::kFloat32, {3, 2});
      },
      "hidden_states_scale must be absent for bfloat16 tokens, which are quantised here; drop it or pass "
      "float8_e4m3fn tokens");
}

TEST_F(ValidateForward, RefusesRoutingOfAnotherShapeOrType) {
  expect_refused([](auto& a) { a.topk_ids.dtype = DType::kFloat32; },
                 "topk_ids must be int32 or int64, got float32; convert it first");
  expect_refused([](auto& a) { a.topk_ids.shape[0] = 2; }, "topk_ids must have shape [3, 2], got [2, 2]");
  expect_refused([](auto& a) { a.topk_weights.shape[1] = 4; }, "topk_weights must have shape [3, 2], got [3, 4]");
  expect_refused([](auto& a) { a.topk_weights = {}; }, "topk_weights must be given, got an empty view");
  expect_refused([](auto& a) { a.topk_weights.dtype = DType::kBFloat16; },
                 "topk_weights must be float32, got bfloat16; convert it first");
}

TEST_F(ValidateForward, RefusesOutputsThatCannotBeWritten) {
  expect_refused([](auto& a) { a.output.dtype = DType::kFloat32; },
                 "output must be bfloat16, got float32; convert it first");
  expect_refused([](auto& a) { a.output.shape[0] = 2; }, "output must have shape [3, 256], got [2, 256]");
  expect_refused([](auto& a) { a.output.strides[1] = 2; },
                 "the elements of a row of output must be neighbours (stride 1), got stride 2");
  for (const int64_t stride : {0, 255, -1})
    expect_refused([=](auto& a) { a.output.strides[0] = stride; },
                   "rows of output must not overlap, got 256 columns at a row stride of " + std::to_string(stride));
}

}  // namespace
}  // namespace megamoe::test
