// Row errors by hand, and that nothing non-finite or zero can pass as a match.
#include "core/reference/row_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace megamoe::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

RowError error_of(const std::vector<double>& actual, const std::vector<double>& expected) {
  return row_error(actual.data(), expected.data(), expected.size());
}

TEST(RowError, ByHand) {
  const RowError error = error_of({3.0, 4.0}, {3.0, 0.0});
  EXPECT_DOUBLE_EQ(error.rel_l2, 4.0 / 3.0);
  EXPECT_DOUBLE_EQ(error.cosine, 0.6);
  EXPECT_EQ(error_of({-1.0, 2.0}, {-1.0, 2.0}).rel_l2, 0.0);
  EXPECT_DOUBLE_EQ(error_of({-1.0, 2.0}, {1.0, -2.0}).cosine, -1.0);
}

TEST(RowError, Bf16Rows) {
  const std::vector<uint16_t> actual = {0x3f80, 0xc000};
  const std::vector<double> expected = {1.0, -2.0};
  EXPECT_EQ(row_error(actual.data(), expected.data(), 2).rel_l2, 0.0);
}

TEST(RowError, ZeroRowsMatchOnlyZeroRows) {
  EXPECT_EQ(error_of({0.0, -0.0}, {0.0, 0.0}).rel_l2, 0.0);
  EXPECT_EQ(error_of({0.0, -0.0}, {0.0, 0.0}).cosine, 1.0);
  EXPECT_EQ(error_of({0.0, 1e-30}, {0.0, 0.0}).rel_l2, kInfinity);
  EXPECT_EQ(error_of({0.0, 0.0}, {0.0, 1.0}).rel_l2, 1.0);
  EXPECT_EQ(error_of({0.0, 0.0}, {0.0, 1.0}).cosine, 0.0);
}

TEST(RowError, NonFiniteElementsMustBeMatchedInKind) {
  EXPECT_EQ(error_of({kNan, 1.0}, {2.0, 1.0}).rel_l2, kInfinity);
  EXPECT_EQ(error_of({2.0, 1.0}, {kNan, 1.0}).rel_l2, kInfinity);
  EXPECT_EQ(error_of({kInfinity, 1.0}, {-kInfinity, 1.0}).rel_l2, kInfinity);
  EXPECT_EQ(error_of({kInfinity, 1.0}, {kNan, 1.0}).cosine, -1.0);
  EXPECT_EQ(error_of({kNan, kInfinity, 1.0}, {kNan, kInfinity, 1.0}).rel_l2, 0.0);
  EXPECT_EQ(error_of({kNan, 1.0}, {kNan, 2.0}).rel_l2, 0.5);
}

TEST(ErrorSummary, KeepsTheWorstRowAndTheMean) {
  ErrorSummary summary;
  summary.add(10, {0.1, 0.9});
  summary.add(11, {0.3, 0.8});
  summary.add(12, {0.2, 0.95});
  EXPECT_EQ(summary.max_row_rel_l2, 0.3);
  EXPECT_EQ(summary.worst_row, 11u);
  EXPECT_DOUBLE_EQ(summary.mean_row_rel_l2, 0.2);
  EXPECT_EQ(summary.min_row_cosine, 0.8);
  EXPECT_EQ(summary.rows_checked, 3u);
  summary.add(13, {kInfinity, -1.0});
  summary.add(14, {kInfinity, -1.0});
  EXPECT_EQ(summary.max_row_rel_l2, kInfinity);
  EXPECT_EQ(summary.mean_row_rel_l2, kInfinity);
  EXPECT_EQ(summary.worst_row, 13u);
}

}  // namespace
}  // namespace megamoe::reference
