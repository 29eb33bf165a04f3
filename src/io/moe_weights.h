// The experts of one layer, out of a checkpoint folder into the buffers that a layer is created from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/buffer.h"
#include "io/model_config.h"
#include "megamoe/shape.h"
#include "megamoe/status.h"

namespace megamoe::io {

/// Experts [expert_begin, expert_end) of one layer, n of them, H = hidden, I = intermediate. Value = code * scale.
struct LayerWeights {
  ModelConfig config;
  uint32_t layer = 0;
  uint32_t expert_begin = 0;
  uint32_t expert_end = 0;
  Buffer<uint8_t> w13;             ///< E4M3 codes [n][2I][H], gate rows then up rows.
  Buffer<float> w13_scale;         ///< [n][2][ceil(I / 128)][H / 128], gate grid then up grid.
  Buffer<uint8_t> w2;              ///< E4M3 codes [n][H][I].
  Buffer<float> w2_scale;          ///< [n][H / 128][ceil(I / 128)].
  bool packed_here = false;        ///< Whether weights were rounded to E4M3 on loading.
  std::vector<std::string> notes;  ///< One sentence each, for example that BF16 weights were packed to E4M3 here.

  const MoeShape& shape() const { return config.shape; }
  uint32_t num_local_experts() const { return expert_end - expert_begin; }
};

/// Reads `folder` (config.json and safetensors). FP8 weights (E4M3 with F32, BF16 or E8M0 block scales) are taken as
/// they are; MXFP4 weights are expanded to E4M3; BF16, F16 and F32 weights are packed to E4M3. Every tensor of the
/// layer is checked by name, type and shape before memory is allocated; then only the experts asked for are read. Peak
/// memory: the result and one expert. kInvalidArgument: an expert range that is empty or passes the number of experts.
/// kBadFile: anything missing, short, duplicated, unknown or contradictory, all of it listed; a NaN weight or a scale
/// that is not finite, by name and index. kNotSupported: a naming, type or quantisation that is recognised but not
/// loaded.
Result<LayerWeights> load_moe_layer(const std::string& folder, uint32_t layer, uint32_t expert_begin,
                                    uint32_t expert_end);

/// The same for all experts of the layer.
Result<LayerWeights> load_moe_layer(const std::string& folder, uint32_t layer);

}  // namespace megamoe::io
