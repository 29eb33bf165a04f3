// One rank's layer out of loaded data, and the arguments of its call: alike for ranks as threads and as processes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/options.h"
#include "io/layer_files.h"
#include "io/moe_checkpoint.h"
#include "io/moe_weights.h"
#include "megamoe/moe_layer.h"

namespace megamoe::cli {

/// The GPU of each rank, in turn over those that the options name, or over all. Empty on the CPU.
/// Errors: kInvalidArgument for a GPU that is not there; kNotSupported where there is none at all.
Result<std::vector<int32_t>> rank_devices(const Execution& execution);

/// A view of a rank's experts and of the shared ones, which must outlive the layer that is given it.
ExpertWeights weights_view(const io::LayerWeights& weights, const io::SharedExperts& shared);

/// Rows [first_row, + num_tokens) of `inputs`; `output` has as many rows as `inputs`.
ForwardArgs forward_args(const io::LayerInputs& inputs, uint64_t first_row, uint32_t num_tokens,
                         std::span<uint16_t> output);

/// Adds the BF16 rows of a second call to those of the first: FP32 sums, rounded once.
void add_rows(std::span<const uint16_t> second, std::span<uint16_t> output);

}  // namespace megamoe::cli
