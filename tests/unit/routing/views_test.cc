// Callers' tensors: every type, shape and stride that routing must refuse before it reads.
#include "routing/views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace megamoe::routing {
namespace {

using enum DType;

class Views : public testing::Test {
 protected:
  std::vector<float> logits_{0, 3, 1, 2, 5, 5, 5, 5}, bias_{9, 0, 0, 0}, weights_ = std::vector<float>(4);
  std::vector<int64_t> ids_ = std::vector<int64_t>(4);
  RouterConfig config_{.num_experts = 4, .top_k = 2, .scoring = Scoring::kSigmoid};
  TensorView logits = TensorView::dense(logits_.data(), kFloat32, {2, 4});
  TensorView bias;
  TensorView ids = TensorView::dense(ids_.data(), kInt64, {2, 2});
  TensorView weights = TensorView::dense(weights_.data(), kFloat32, {2, 2});

  Status choose() { return choose_experts(config_, logits, bias, ids, weights); }
  void expect_refused(const std::string& words) {
    const Status status = choose();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr(words));
  }
};

TEST_F(Views, ChooseTheBest) {
  ASSERT_TRUE(choose().ok());
  EXPECT_THAT(ids_, testing::ElementsAre(1, 3, 0, 1));
  config_.has_correction_bias = true;
  bias = TensorView::dense(bias_.data(), kFloat32, {4});
  ASSERT_TRUE(choose().ok());
  EXPECT_THAT(ids_, testing::ElementsAre(0, 1, 0, 1));
  logits = TensorView::dense(nullptr, kFloat32, {0, 4});
  ids = TensorView::dense(nullptr, kInt64, {0, 2});
  weights = TensorView::dense(nullptr, kFloat32, {0, 2});
  EXPECT_TRUE(choose().ok());
}

TEST_F(Views, LogitsThatCannotBe) {
  logits.dtype = kBFloat16;
  expect_refused("logits must be float32, got bfloat16");
  logits = TensorView::dense(logits_.data(), kFloat32, {2, 3});
  expect_refused("logits must have shape [2, 4], got [2, 3]");
  logits = TensorView::dense(logits_.data(), kFloat32, {8});
  expect_refused("got [8]");
  logits = TensorView::dense(logits_.data(), kFloat32, {-1, 4});
  expect_refused("logits must have shape");
  logits = TensorView::dense(nullptr, kFloat32, {2, 4});
  expect_refused("logits must have data, got null");
  logits = TensorView::dense(logits_.data(), kFloat32, {2, 4});
  logits.strides[0] = 8;
  expect_refused("logits must be dense");
  logits.strides[0] = 4;
  logits.device = Device::kCuda;
  expect_refused("logits must lie in host memory");
  logits = {};
  expect_refused("logits must be given, got none");
}

TEST_F(Views, OutputsAndBiasThatCannotBe) {
  ids.dtype = kInt32;
  expect_refused("topk_ids must be int64, got int32");
  ids = TensorView::dense(ids_.data(), kInt64, {1, 2});
  expect_refused("topk_ids must have shape [2, 2], got [1, 2]");
  ids = TensorView::dense(ids_.data(), kInt64, {2, 2});
  weights = TensorView::dense(weights_.data(), kFloat32, {2, 1});
  expect_refused("topk_weights must have shape [2, 2]");
  weights = TensorView::dense(weights_.data(), kFloat32, {2, 2});
  bias = TensorView::dense(bias_.data(), kFloat32, {4});
  expect_refused("correction_bias must be absent");
  config_.has_correction_bias = true;
  bias = {};
  expect_refused("correction_bias must be given");
  config_.top_k = 5;
  expect_refused("top_k must be 1 to 4");
}

}  // namespace
}  // namespace megamoe::routing
