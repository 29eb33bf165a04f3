// Every tensor map of a rank, built from its workspace and its weights.
#pragma once

#include "backends/sm90/kernel_args.h"
#include "megamoe/moe_layer.h"
#include "protocol/kernel_spec.h"

namespace megamoe::sm90 {

/// The maps over the workspace: pool, activations.
Status make_workspace_maps(const protocol::RankView& view, const protocol::KernelSpec& spec, TensorMaps& maps);

/// The maps over weights that lie together, in the row order that they have.
/// @param w13  device, [num_experts][2 I][H]; w2 likewise [num_experts][H][I]
Status make_weight_maps(const protocol::RankView& view, const protocol::KernelSpec& spec, uint32_t num_experts,
                        const void* w13, const void* w2, W13Layout layout, CUtensorMap& w13_map, CUtensorMap& w2_map);

}  // namespace megamoe::sm90
