// Where the ranks' memory lies in one process: sizes, and a mapping that unmaps itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/status.h"

namespace megamoe::comm {

struct RegionSizes {
  uint64_t stride_bytes = 0;  ///< From one rank's memory to the next; what one rank takes.
  uint64_t total_bytes = 0;   ///< Of all ranks.
};

/// Whole pages; whole huge pages (2 MiB) from 256 MiB on, where that adds less than 1 %.
Result<RegionSizes> region_sizes(uint64_t bytes, uint32_t num_ranks);

/// Zeroed memory that takes pages only as they are touched; its base is aligned to 2 MiB.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { reset(); }
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  /// Memory of this process alone.
  static Result<Mapping> anonymous(uint64_t bytes);
  /// The first `bytes` of an open memory file; the descriptor may be closed afterwards.
  static Result<Mapping> shared(int descriptor, uint64_t bytes);

  void reset();
  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

 private:
  static Result<Mapping> map(int flags, int descriptor, uint64_t bytes);

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace megamoe::comm
