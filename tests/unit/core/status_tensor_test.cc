// Names of codes and types, Result, and the arithmetic of tensor views.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <string>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe {
namespace {

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (uint8_t code = 0; code <= static_cast<uint8_t>(Code::kInternal); ++code)
    names.insert(name(static_cast<Code>(code)));
  EXPECT_EQ(names.size(), size_t{static_cast<uint8_t>(Code::kInternal)} + 1);
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(name(Code::kOk), "ok");
  EXPECT_EQ(name(Code::kInvalidArgument), "invalid_argument");
  EXPECT_EQ(name(static_cast<Code>(200)), "unknown");
}

TEST(Status, ResultHoldsAValueOrAReason) {
  Result<std::unique_ptr<int>> value = std::make_unique<int>(7);
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*std::move(value).value(), 7);
  const Result<std::unique_ptr<int>> refused = Status(Code::kBadFile, "file is short");
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kBadFile);
  EXPECT_EQ(refused.status().message(), "file is short");
}

TEST(Status, ReturnIfErrorStopsAtTheFirstError) {
  const auto run = [](Status first) -> Status {
    MEGAMOE_RETURN_IF_ERROR(first);
    return Status(Code::kInternal, "second");
  };
  EXPECT_EQ(run(Status(Code::kTimeout, "first")).message(), "first");
  EXPECT_EQ(run(Status()).message(), "second");
}

TEST(Tensor, NamesAndSizesOfTypes) {
  EXPECT_EQ(name(DType::kFloat8E4M3), "float8_e4m3fn");
  EXPECT_EQ(name(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(name(static_cast<DType>(200)), "unknown");
  EXPECT_EQ(element_bytes(DType::kNone), 0u);
  EXPECT_EQ(element_bytes(DType::kFloat8E4M3), 1u);
  EXPECT_EQ(element_bytes(DType::kFloat8E8M0), 1u);
  EXPECT_EQ(element_bytes(DType::kUInt8), 1u);
  EXPECT_EQ(element_bytes(DType::kBFloat16), 2u);
  EXPECT_EQ(element_bytes(DType::kFloat32), 4u);
  EXPECT_EQ(element_bytes(DType::kInt32), 4u);
  EXPECT_EQ(element_bytes(DType::kInt64), 8u);
}

TEST(Tensor, DenseViewsAreRowMajor) {
  const float data[24] = {};
  const TensorView view = TensorView::dense(data, DType::kFloat32, {2, 3, 4});
  EXPECT_TRUE(view.present());
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.num_dims, 3u);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(view.num_elements(), 24);
  EXPECT_TRUE(view.is_dense());
}

TEST(Tensor, OtherStridesAreNotDenseUnlessTheExtentIsOne) {
  TensorView view = TensorView::dense(nullptr, DType::kFloat32, {1, 3, 4});
  view.strides[0] = 999;
  EXPECT_TRUE(view.is_dense());
  view.strides[1] = 5;
  EXPECT_FALSE(view.is_dense());
}

TEST(Tensor, EmptyAndAbsentViews) {
  const TensorView empty = TensorView::dense(nullptr, DType::kBFloat16, {0, 128});
  EXPECT_TRUE(empty.present());
  EXPECT_EQ(empty.num_elements(), 0);
  EXPECT_TRUE(empty.is_dense());
  EXPECT_FALSE(TensorView{}.present());
  EXPECT_EQ(TensorView{}.num_elements(), 0);
  EXPECT_EQ(TensorView::dense(nullptr, DType::kFloat32, {}).num_elements(), 1) << "a scalar";
  EXPECT_FALSE(TensorView::dense(nullptr, DType::kFloat32, {1, 1, 1, 1, 1, 1}).present()) << "too many extents";
}

TEST(Tensor, HugeExtentsSaturateInsteadOfWrapping) {
  const TensorView view = TensorView::dense(nullptr, DType::kFloat32, {int64_t{1} << 40, int64_t{1} << 40});
  EXPECT_EQ(view.num_elements(), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace megamoe
