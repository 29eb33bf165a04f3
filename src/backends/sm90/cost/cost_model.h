// The time of a call on H200 GPUs, predicted from its sizes: what the choice of a kernel rests on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "megamoe/shape.h"

namespace megamoe::sm90 {

/// What the time of a call depends on. Routing is taken to be uniform, top_k distinct experts a token.
struct CallSize {
  MoeShape shape;
  uint32_t num_ranks = 1;  ///< Each on a GPU of its own.
  uint32_t tokens_per_rank = 1;
  uint32_t unit_blocks = 8;  ///< Blocks of an expert that share a pass over its weights.
  uint32_t num_sms = 132;
};

/// Of one compiled kernel. The times are fitted to measurements; see kKernelCosts.
struct KernelCosts {
  std::string_view name;
  uint32_t block_m = 0;
  uint32_t extra_m = 0;  ///< Further rows of an expert's last block, which cost nothing here.
  uint32_t tile_n = 256;
  double head_us = 0;               ///< From the launch to the first products, with few slots.
  double expert_us = 0;             ///< More of it for each expert without rows that the walk over the plan passes.
  double slot_us = 0;               ///< More of it for each 1,024 slots of a rank.
  double load_us = 0;               ///< One SM alone, to fetch the operands of a k-block of 128.
  double full_us = 0;               ///< To multiply and promote a k-block of more than 64 rows,
  double half_us = 0;               ///< and of up to 64.
  double tile_us = 0;               ///< Of a tile besides its k-blocks: epilogue, refill.
  double read_bytes_per_us = 0;     ///< Weights, by all SMs together.
  double combine_bytes_per_us = 0;  ///< Rows that are summed when the last expert is done.
  double tail_us = 0;               ///< From the last product to the end, with few tokens.
};

/// Kernels among which the plan chooses.
std::span<const KernelCosts> kernel_costs();

struct Prediction {
  std::string_view kernel;
  double head_us = 0;
  double weights_us = 0;  ///< Reading weights,
  double tiles_us = 0;    ///< the tiles of the SM that has most of them,
  double nvlink_us = 0;   ///< tokens and rows between GPUs: the longest of the three is what the call waits for.
  double tail_us = 0;
  double rows_per_expert = 0;  ///< Expected, of all experts.
  double experts_hit = 0;      ///< Expected, of a rank.
  double weight_bytes = 0;     ///< Read by a rank, expected.

  double total_us() const;
  /// "reading weights", "multiplying", "NVLink".
  std::string_view bound() const;
};

Prediction predict(const CallSize& size, const KernelCosts& kernel);

/// The kernel with the shortest predicted time.
/// @param block_m  not 0: only kernels with blocks of so many rows
Prediction choose_kernel(const CallSize& size, uint32_t block_m);

/// Why that kernel, and where the time should go, in words.
std::string explain(const CallSize& size, uint32_t block_m);

}  // namespace megamoe::sm90
