// Which rows of a tile are multiplied as rows, and which as columns.
#include "backends/sm90/tile_form.h"

#include <gtest/gtest.h>

#include "backends/sm90/specs.h"

namespace megamoe::sm90 {
namespace {

TEST(TileForm, EveryRowOfATileIsLoaded) {
  constexpr uint32_t kExtra = M128::kSpec.extra_m;
  static_assert(kExtra > 0);
  for (uint32_t rows = 1; rows <= M128::kSpec.room_m(); ++rows) {
    const TileForm form = TileForm::of<M128>(rows);
    EXPECT_LE(rows, form.main_rows + (form.has_extra ? kExtra : 0)) << rows;
    EXPECT_EQ(form.has_extra, rows > form.main_rows) << rows;
    EXPECT_EQ(form.main_rows, rows <= 64 + kExtra ? 64u : 128u) << rows;
    EXPECT_EQ(form.is_split<M128>(), rows <= 64 + kExtra) << rows;
  }
}

TEST(TileForm, KernelsWithoutFurtherRowsHaveOneForm) {
  for (uint32_t rows = 1; rows <= 64; ++rows) {
    EXPECT_EQ(TileForm::of<M64>(rows).main_rows, 64u);
    EXPECT_FALSE(TileForm::of<M64>(rows).has_extra);
    EXPECT_FALSE(TileForm::of<M64>(rows).is_split<M64>());
  }
}

}  // namespace
}  // namespace megamoe::sm90
