// What goes into a layer and what comes out of it, as files.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/buffer.h"
#include "megamoe/status.h"

namespace megamoe::io {

/// Tokens and their routing; T tokens, H columns, K slots, m shared experts.
struct LayerInputs {
  uint64_t num_tokens = 0;
  uint32_t hidden = 0;
  uint32_t top_k = 0;              ///< 0 where there is no routing.
  uint32_t num_shared = 0;         ///< Columns of shared_weights.
  Buffer<uint16_t> hidden_states;  ///< BF16 bit patterns [T][H].
  Buffer<int64_t> topk_ids;        ///< [T][K]; values are not checked here.
  Buffer<float> topk_weights;      ///< [T][K].
  Buffer<float> shared_weights;    ///< [T][m]; empty: shared experts weigh 1.
};

enum class RoutingInFile : uint8_t { kRequired = 0, kOptional };

/// Reads `hidden_states` (BF16), `topk_ids` (I64 or I32; also under the name `experts_in1`) and `topk_weights` (F32 or
/// BF16; also `experts_in2`). kBadFile where one is missing, present under both names, or the shapes do not agree;
/// kNotSupported for other types. Where the routing is optional
/// and neither of its tensors is there, top_k is 0.
Result<LayerInputs> read_layer_inputs(const std::string& path, RoutingInFile routing = RoutingInFile::kRequired);

/// The names of the tensors of a file, sorted.
Result<std::vector<std::string>> read_tensor_names(const std::string& path);

struct FloatRows {
  uint64_t num_rows = 0;
  uint64_t num_cols = 0;
  Buffer<float> values;  ///< [num_rows][num_cols].
};

/// Reads a two-dimensional F32 or BF16 tensor to compare with. A missing name lists the names there are.
Result<FloatRows> read_compare(const std::string& path, const std::string& tensor_name);

/// Writes BF16 rows [num_tokens][hidden] as tensor `output`, whole or not at all.
Status write_layer_output(const std::string& path, std::span<const uint16_t> output_bf16, uint64_t num_tokens,
                          uint32_t hidden, const std::map<std::string, std::string>& metadata);

}  // namespace megamoe::io
