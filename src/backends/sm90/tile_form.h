// How the math role takes a tile of a given height. Plain arithmetic, the same for the roles that load, multiply,
// store.
#pragma once

#include "protocol/kernel_spec.h"

namespace megamoe::sm90 {

/// The rows that are the multiply's rows, and whether further ones follow, which are its columns.
struct TileForm {
  uint32_t main_rows;  ///< Rows that are loaded and multiplied as rows, of which the tile may have fewer.
  bool has_extra;      ///< The tile has rows from main_rows on.

  /// A tile of at most half of the rows (or few more) is divided among the warpgroups along its columns.
  template <class Spec>
  static MEGAMOE_HD constexpr TileForm of(uint32_t num_rows) {
    constexpr bool kSplits = Spec::kSpec.splits_half_tiles();
    constexpr uint32_t kHalf = protocol::KernelSpec::kWarpgroupRows, kExtra = Spec::kSpec.extra_m;
    const uint32_t main_rows = kSplits && num_rows <= kHalf + kExtra ? kHalf : Spec::kSpec.block_m;
    return {main_rows, kExtra != 0 && num_rows > main_rows};
  }
  template <class Spec>
  MEGAMOE_HD constexpr bool is_split() const {
    return main_rows < Spec::kSpec.block_m;
  }
};

}  // namespace megamoe::sm90
