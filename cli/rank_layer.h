// One rank's layer out of loaded data, and the arguments of its call: alike for ranks as threads and as processes.
#pragma once

#include <cstdint>
#include <span>

#include "io/layer_files.h"
#include "io/moe_weights.h"
#include "megamoe/moe_layer.h"

namespace megamoe::cli {

/// A view of a rank's experts, which must outlive the layer that is given it.
ExpertWeights weights_view(const io::LayerWeights& weights);

/// Rows [first_row, + num_tokens) of `inputs`; `output` has as many rows as `inputs`.
ForwardArgs forward_args(const io::LayerInputs& inputs, uint64_t first_row, uint32_t num_tokens,
                         std::span<uint16_t> output);

}  // namespace megamoe::cli
