// Every precondition of the public calls and its message, in one file.
#pragma once

#include "backends/backend.h"
#include "megamoe/moe_layer.h"

namespace megamoe::api {

Status validate_config(const LayerConfig& config, uint32_t num_ranks);
/// @param backend  says where the tensors must lie
Status validate_weights(const ExpertWeights& weights, const MoeShape& shape, uint32_t local_experts,
                        const backends::Backend& backend);
/// Everything but the ids' values, which the dispatch role checks while it reads them.
Status validate_forward(const ForwardArgs& args, const LayerConfig& config, const backends::Backend& backend);

}  // namespace megamoe::api
