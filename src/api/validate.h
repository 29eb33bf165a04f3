// Every precondition of the public calls and its message, in one file.
#pragma once

#include "backends/backend.h"
#include "megamoe/moe_layer.h"

namespace megamoe::api {

Status validate_config(const LayerConfig& config, uint32_t num_ranks);
/// @param local_experts  of each rank, shared ones left out
/// @param backend        says where the tensors must lie
Status validate_weights(const ExpertWeights& weights, const LayerConfig& config, uint32_t local_experts,
                        const backends::Backend& backend);
/// Everything but the values of ids and of the expert map, which the dispatch role checks while it reads them, and
/// active_ranks. With a stream, also everything but the values of scales, which lie in GPU memory.
Status validate_forward(const ForwardArgs& args, const LayerConfig& config, uint32_t num_ranks,
                        const backends::Backend& backend);
/// Whether this rank takes part in a call. Not ok: it must not tell anybody.
Status validate_active_ranks(const ForwardArgs& args, uint32_t rank, uint32_t num_ranks);
/// Tokens are the layer's own input views as they are, or lie outside them. The arguments are valid otherwise.
Status validate_input_views(const ForwardArgs& args, const InputViews& views);

}  // namespace megamoe::api
