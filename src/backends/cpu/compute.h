// The arithmetic of one CPU worker: input blocks, L1 tiles, L2 tiles, combined tokens. Knows the layout, no protocol.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "backends/cpu/weights.h"
#include "megamoe/moe_layer.h"
#include "protocol/rank_view.h"

namespace megamoe::cpu {

/// What the workers of one call share. Read-only while they run.
struct CallInputs {
  const ForwardArgs* args = nullptr;
  uint32_t num_tokens = 0;
  const int32_t* slot_experts = nullptr;  ///< [T][top_k], negative: masked.
  float clamp = 0;                        ///< +infinity: none.
  const WeightTable* weights = nullptr;
};

struct AlignedFree {
  void operator()(void* pointer) const { std::free(pointer); }
};

/// One worker's scratch and arithmetic. Created once, used for every call.
class Compute {
 public:
  explicit Compute(const protocol::RankView& view);

  /// Writes codes and scales of input tokens [first, first + count).
  void fill_input(const CallInputs& inputs, uint32_t first_token, uint32_t num_tokens);
  /// Gate and up columns [128 * n, ...) of the block, SwiGLU, requantisation: one scale group of the activations.
  void l1_tile(const CallInputs& inputs, const protocol::Tile& tile, uint32_t num_rows);
  /// Output columns [128 * n, ...) of the block, rounded to BF16, into the combine rows of each row's source rank.
  void l2_tile(const CallInputs& inputs, const protocol::Tile& tile, uint32_t num_rows);
  /// Sums a token's live slots in slot order into the output row.
  void combine(const CallInputs& inputs, uint32_t token);

 private:
  /// sums[num_rows][columns] of the token rows of a block with weight rows [first_row, ...) of one half of w13.
  void token_gemm(const WeightTable& weights, const protocol::Tile& tile, uint32_t num_rows, core::W13Half half,
                  float* sums);

  const protocol::RankView* view_;
  std::unique_ptr<void, AlignedFree> scratch_;
  std::vector<float> gate_;         // [room_m][128]
  std::vector<float> up_;           // [room_m][128]
  std::vector<float> row_weights_;  // [room_m]
  std::vector<uint16_t> rows_;      // [room_m][128] bf16
};

}  // namespace megamoe::cpu
