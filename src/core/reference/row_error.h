// How far a computed row is from the oracle's: per row first, because one spoiled row in hundreds hides in any global
// figure.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/reference/formats.h"

namespace megamoe::reference {

/// Both are numbers, never NaN: an infinite rel_l2 says that a zero or non-finite element is not matched.
struct RowError {
  double rel_l2 = 0.0;  ///< |actual - expected| / |expected|; 0 for two zero rows.
  double cosine = 1.0;  ///< Of the angle between the rows; 1 for two zero rows, 0 where only one of them is zero.
};

/// `actual(i)` and `expected(i)` give element i. Non-finite elements must agree in kind (NaN with NaN, an infinity with
/// the same one) and are then left out of the sums; one that does not gives rel_l2 = infinity and cosine = -1.
template <class Actual, class Expected>
RowError row_error_of(uint64_t columns, Actual&& actual, Expected&& expected) {
  double difference = 0.0;
  double expected_square = 0.0;
  double actual_square = 0.0;
  double product = 0.0;
  for (uint64_t i = 0; i < columns; ++i) {
    const double a = actual(i);
    const double e = expected(i);
    if (!std::isfinite(a) || !std::isfinite(e)) {
      const bool same_kind = (std::isnan(a) && std::isnan(e)) || a == e;
      if (!same_kind) return {kInfinity, -1.0};
      continue;
    }
    difference += (a - e) * (a - e);
    expected_square += e * e;
    actual_square += a * a;
    product += a * e;
  }
  if (expected_square == 0.0) return actual_square == 0.0 ? RowError{} : RowError{kInfinity, 0.0};
  if (actual_square == 0.0) return {1.0, 0.0};
  return {std::sqrt(difference / expected_square), product / (std::sqrt(expected_square) * std::sqrt(actual_square))};
}

/// A BF16 row, as the layer writes it, against an oracle row.
inline RowError row_error(const uint16_t* actual_bf16, const double* expected, uint64_t columns) {
  return row_error_of(
      columns, [&](uint64_t i) { return bf16_value(actual_bf16[i]); }, [&](uint64_t i) { return expected[i]; });
}

inline RowError row_error(const double* actual, const double* expected, uint64_t columns) {
  return row_error_of(
      columns, [&](uint64_t i) { return actual[i]; }, [&](uint64_t i) { return expected[i]; });
}

/// The rows of one check together. With no row checked, the figures say nothing: look at rows_checked.
struct ErrorSummary {
  double max_row_rel_l2 = 0.0;
  double mean_row_rel_l2 = 0.0;
  double min_row_cosine = 1.0;
  uint64_t rows_checked = 0;
  uint64_t worst_row = 0;  ///< The row (as numbered by the caller) that gave max_row_rel_l2.

  void add(uint64_t row, const RowError& error) {
    if (rows_checked == 0 || error.rel_l2 > max_row_rel_l2) {
      max_row_rel_l2 = error.rel_l2;
      worst_row = row;
    }
    if (error.cosine < min_row_cosine) min_row_cosine = error.cosine;
    rows_checked += 1;
    sum_rel_l2_ += error.rel_l2;
    mean_row_rel_l2 = sum_rel_l2_ / static_cast<double>(rows_checked);
  }

 private:
  double sum_rel_l2_ = 0.0;
};

}  // namespace megamoe::reference
