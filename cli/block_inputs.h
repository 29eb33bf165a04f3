// What a whole MoE block needs beside tokens and routed experts: its router's choice and its shared experts.
#pragma once

#include <cstdint>

#include "cli/layer_data.h"
#include "io/moe_checkpoint.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Loads router and shared experts of `layer`, and replaces the routing of `data.inputs` with the router's choice.
/// Where the file brought a routing, counts the tokens on which both agree.
Status complete_block(const io::MoeCheckpoint& checkpoint, uint32_t layer, LayerData& data);

/// Where the model's router weight belongs on the input of an expert: puts the file's weights there.
Status place_weights(const io::ModelConfig& config, LayerData& data);

}  // namespace megamoe::cli
