// Every sentence with which weights are refused.
#include <cmath>
#include <functional>
#include <limits>

#include "api/registry.h"
#include "api/validate.h"
#include "support/layer_group.h"
#include "unit/api/refusal.h"

namespace megamoe::test {
namespace {

class ValidateWeights : public ::testing::Test {
 protected:
  Status check(const std::function<void(ExpertWeights&)>& change, uint32_t intermediate = 256) {
    weights_ = zero_weights({256, intermediate, 4, 2});
    ExpertWeights view = rank_weights(weights_, 0, 2);
    change(view);
    LayerConfig config = small_config(weights_.shape, 4);
    config.num_shared_experts = num_shared_;
    return api::validate_weights(view, config, 2, *api::find_backend("cpu").value());
  }
  void expect_refused(const std::function<void(ExpertWeights&)>& spoil, const std::string& sentence,
                      uint32_t intermediate = 256) {
    expect_refusal(check(spoil, intermediate), Code::kInvalidArgument, "moe_layer.load_weights: " + sentence);
  }

  TestWeights weights_;
  uint32_t num_shared_ = 0;
};

TEST_F(ValidateWeights, AcceptsSoundOnesInEveryLayout) {
  for (const W13Layout layout :
       {W13Layout::kGateUp, W13Layout::kUpGate, W13Layout::kInterleaved1, W13Layout::kInterleaved8})
    for (const uint32_t intermediate : {64u, 192u, 256u})
      expect_ok(check([=](auto& w) { w.w13_layout = layout; }, intermediate));
}

TEST_F(ValidateWeights, RefusesALayoutThatIsNotStated) {
  expect_refused([](auto& w) { w.w13_layout = W13Layout::kUnspecified; },
                 "w13_layout must be stated (gate_up, up_gate, interleaved_1 or interleaved_8), since gate and up rows "
                 "look alike");
}

TEST_F(ValidateWeights, ChecksSharedExpertsLikeTheOthers) {
  expect_refused([](auto& w) { w.shared_w2 = w.w2; },
                 "shared_w2 must be absent, since the layer was created with num_shared_experts 0; drop it");
  num_shared_ = 2;
  const auto with_shared = [](auto& w) {
    w.shared_w13 = w.w13;
    w.shared_w13_scale = w.w13_scale;
    w.shared_w2 = w.w2;
    w.shared_w2_scale = w.w2_scale;
  };
  expect_ok(check(with_shared));
  expect_refused([](auto&) {}, "shared_w13 must be given, got an empty view");
  expect_refused([&](auto& w) { with_shared(w), w.shared_w2 = {}; }, "shared_w2 must be given, got an empty view");
  expect_refused([&](auto& w) { with_shared(w), w.shared_w13.shape[0] = 1; },
                 "shared_w13 must have shape [2, 512, 256], got [1, 512, 256]");
  expect_refused([&](auto& w) { with_shared(w), w.shared_w2_scale.dtype = DType::kBFloat16; },
                 "shared_w2_scale must be float32 or float8_e8m0fnu, got bfloat16; convert it first");
}

TEST_F(ValidateWeights, RefusesMissingTensors) {
  expect_refused([](auto& w) { w.w13 = {}; }, "w13 must be given, got an empty view");
  expect_refused([](auto& w) { w.w13_scale = {}; }, "w13_scale must be given, got an empty view");
  expect_refused([](auto& w) { w.w2 = {}; }, "w2 must be given, got an empty view");
  expect_refused([](auto& w) { w.w2_scale = {}; }, "w2_scale must be given, got an empty view");
  expect_refused([](auto& w) { w.w2.data = nullptr; }, "w2 must not be null, since it has 131072 elements");
}

TEST_F(ValidateWeights, RefusesOtherTypes) {
  expect_refused([](auto& w) { w.w13.dtype = DType::kBFloat16; },
                 "w13 must be float8_e4m3fn, got bfloat16; convert it first");
  expect_refused([](auto& w) { w.w2.dtype = DType::kUInt8; }, "w2 must be float8_e4m3fn, got uint8; convert it first");
}

TEST_F(ValidateWeights, RefusesOtherShapes) {
  expect_refused([](auto& w) { w.w13.shape[0] = 4; }, "w13 must have shape [2, 512, 256], got [4, 512, 256]");
  expect_refused([](auto& w) { w.w13.num_dims = 2; }, "w13 must have shape [2, 512, 256], got [2, 512]");
  expect_refused([](auto& w) { std::swap(w.w2_scale.shape[0], w.w2_scale.shape[1]), w.w2_scale.shape[2] = 1; },
                 "w2_scale must have shape [2, 2, 2], got [2, 2, 1]");
  expect_refused([](auto& w) { w.w13_scale.shape[1] = 1; }, "w13_scale must have shape [2, 2, 2, 2], got [2, 1, 2, 2]");
}

TEST_F(ValidateWeights, AViewWithTooManyDimensionsIsRefusedWithoutReadingBeyondIt) {
  expect_refused([](auto& w) { w.w13.num_dims = 1000; }, "w13 must have shape [2, 512, 256], got [2, 512, 256, 0, 0]");
}

TEST_F(ValidateWeights, RefusesStrides) {
  expect_refused([](auto& w) { std::swap(w.w2.strides[1], w.w2.strides[2]); },
                 "w2 must be dense and row-major, since weights are used in place, got other strides; copy it first");
  expect_refused([](auto& w) { w.w2_scale.strides[1] = 3; },
                 "w2_scale must be dense and row-major, since weights are used in place, got other strides; copy it "
                 "first");
}

TEST_F(ValidateWeights, RefusesOneGridOverBothHalvesWhereTheyWouldShareBlocks) {
  expect_refused(
      [](auto& w) {
        w.w13_scale = TensorView::dense(w.w13_scale.data, DType::kFloat32, {2, 3, 2});
      },
      "w13_scale must have shape [2, 2, 2, 2] (gate and up grids apart), since intermediate 192 is no multiple of 128 "
      "and one grid over both would share blocks, got [2, 3, 2]",
      192);
  expect_ok(check([](auto& w) { w.w13_scale = TensorView::dense(w.w13_scale.data, DType::kFloat32, {2, 4, 2}); }));
}

TEST_F(ValidateWeights, RefusesScalesThatAreNotFinite) {
  expect_refused([](auto& w) { static_cast<float*>(w.w13_scale.data)[13] = std::numeric_limits<float>::infinity(); },
                 "every scale of w13_scale must be finite, got inf at [1, 1, 0, 1]");
  expect_refused([](auto& w) { static_cast<float*>(w.w2_scale.data)[6] = std::nanf(""); },
                 "every scale of w2_scale must be finite, got nan at [1, 1, 0]");
}

TEST_F(ValidateWeights, RefusesAFormatThatDoesNotFitTheScales) {
  expect_refused([](auto& w) { w.scale_format = ScaleFormat::kUnspecified; },
                 "the scale format of w13_scale must be stated (float32 or ue8m0), since FP8 scales of both kinds look "
                 "alike");
  expect_refused(
      [](auto& w) {
        static_cast<float*>(w.w13_scale.data)[3] = 0.75f;
        w.scale_format = ScaleFormat::kUe8m0;
      },
      "w13_scale was declared as ue8m0, so every scale must be a power of two, got 0.75 at [0, 0, 1, 1]; declare "
      "float32");
  expect_ok(check([](auto& w) { w.scale_format = ScaleFormat::kUe8m0; }));  // all scales are 1
}

TEST_F(ValidateWeights, RefusesDevicePointersOnTheCpu) {
  expect_refused([](auto& w) { w.w13.device = Device::kCuda; },
                 "w13 must lie in host memory for the cpu backend, got a CUDA device pointer");
}

}  // namespace
}  // namespace megamoe::test
