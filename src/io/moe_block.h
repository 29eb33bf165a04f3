// What one rank needs of one MoE layer of a checkpoint, in one piece: its experts, the router, the shared experts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/buffer.h"
#include "io/moe_checkpoint.h"
#include "megamoe/moe_layer.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::io {

enum class BlockParts : uint8_t {
  kAll = 0,     ///< A router that is not known here is no error: `MoeBlock::router_status` says it.
  kRoutedOnly,  ///< Neither router nor shared experts.
};

/// E = num_experts over all ranks, n = E / ranks of them here, H = hidden, m shared experts.
struct MoeBlock {
  LayerWeights experts;
  RouterWeights router;  ///< Only where router_status is ok.
  Status router_status;  ///< Why there is no router.
  SharedExperts shared;
  bool has_router() const { return router_status.ok(); }
};

/// Loads experts [rank * n, (rank + 1) * n) of the layer; every rank has the same router and shared experts.
/// kInvalidArgument: a rank outside of its group, or ranks that do not divide E. Else as MoeCheckpoint's functions.
Result<MoeBlock> load_moe_block(const std::string& folder, uint32_t layer, uint32_t rank, uint32_t num_ranks,
                                BlockParts parts);

/// Views of the block's weights, for MoeLayer::load_weights(). The block must outlive them.
ExpertWeights weight_views(const MoeBlock& block);

/// The router's choice for T tokens, BF16 bit patterns or FP32.
/// @param hidden_states  [T][H]
/// @param topk_ids       [T][top_k]
/// @param topk_weights   [T][top_k]; the router's scaling factor is in them
Status choose_experts(const RouterWeights& router, std::span<const uint16_t> hidden_states, std::span<int64_t> topk_ids,
                      std::span<float> topk_weights);
Status choose_experts(const RouterWeights& router, std::span<const float> hidden_states, std::span<int64_t> topk_ids,
                      std::span<float> topk_weights);

/// What the shared experts weigh for T tokens: the same for every piece, since the pieces are one; 1 without a gate.
/// @param shared_weights  [T][m]
Status weigh_shared_experts(const SharedExperts& shared, std::span<const uint16_t> hidden_states,
                            std::span<float> shared_weights);
Status weigh_shared_experts(const SharedExperts& shared, std::span<const float> hidden_states,
                            std::span<float> shared_weights);

/// Both for views in host memory, dense. kInvalidArgument naming what has another type or shape; kNotSupported where
/// the block has no router, with the reason.
/// @param hidden_states   [T, H] bfloat16 or float32
/// @param topk_ids        [T, top_k] int64
/// @param topk_weights    [T, top_k] float32
/// @param shared_weights  [T, m] float32, or absent
Status route(const MoeBlock& block, const TensorView& hidden_states, const TensorView& topk_ids,
             const TensorView& topk_weights, const TensorView& shared_weights);

}  // namespace megamoe::io
