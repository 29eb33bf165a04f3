// A checkpoint folder as MoE layers: the experts, router and shared experts of each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/buffer.h"
#include "io/checkpoint.h"
#include "io/expert_names.h"
#include "io/model_config.h"
#include "io/moe_weights.h"
#include "megamoe/status.h"
#include "routing/router.h"

namespace megamoe::io {

/// The router of one layer, E = num_experts, H = hidden. Weights are FP32, exactly what the file holds.
struct RouterWeights {
  routing::RouterConfig config;
  Buffer<float> gate;             ///< [E][H].
  Buffer<float> correction_bias;  ///< [E]; empty without config.has_correction_bias.
};

/// The shared experts of one layer, cut into experts of the routed experts' intermediate size I along their own
/// intermediate dimension, padded with zeros to a multiple of I: their sum is what the whole computes.
struct SharedExperts {
  uint32_t num_experts = 0;   ///< m; 0 where the layer has none.
  uint64_t intermediate = 0;  ///< Of the whole, at most m * I.
  Buffer<uint8_t> w13;        ///< E4M3 codes [m][2I][H], gate rows then up rows.
  Buffer<float> w13_scale;    ///< [m][2][ceil(I / 128)][H / 128].
  Buffer<uint8_t> w2;         ///< E4M3 codes [m][H][I].
  Buffer<float> w2_scale;     ///< [m][H / 128][ceil(I / 128)].
  Buffer<float> gate;         ///< [H]; the sigmoid of its product with a token weighs them. Empty: they weigh 1.
  bool packed_here = false;   ///< Whether weights were rounded to E4M3 on loading.
  std::vector<std::string> notes;
};

/// How one layer is stored; see MoeCheckpoint::describe().
struct LayerDescription {
  uint32_t layer = 0;
  std::string family;  ///< "DeepSeek-V3"; empty where no naming was found.
  std::string order;   ///< "w13 is gate_proj rows, then up_proj rows; w2 is down_proj"
  std::string weight;  ///< Of the first expert: "model.layers.3.mlp.experts.0.gate_proj.weight F8_E4M3 [2048, 7168]"
  std::string scale;   ///< The same of its scale; empty where it has none.
  std::string format;  ///< "E4M3", "MXFP4", "BF16", ...
  std::string router;  ///< "sigmoid + correction bias, best 4 of 8 groups, renormalised, x 2.5"
  std::string shared;  ///< "1 of intermediate 2048"; empty where there is none.
  Status experts_status, router_status, shared_status;  ///< Why a part would not be loaded.
};

class MoeCheckpoint {
 public:
  /// Opens `folder`: config.json and the header of every file, no weights. Errors as those of read_model_config() and
  /// Checkpoint::open().
  static Result<MoeCheckpoint> open(const std::string& folder);
  MoeCheckpoint(Checkpoint files, ModelConfig config);

  MoeCheckpoint(MoeCheckpoint&&) noexcept = default;
  MoeCheckpoint& operator=(MoeCheckpoint&&) noexcept = default;

  const ModelConfig& config() const { return config_; }
  const Checkpoint& files() const { return checkpoint_; }
  /// The layers that have experts, ascending.
  std::vector<uint32_t> layers() const { return layers_with_experts(names_); }

  /// See load_moe_layer().
  Result<LayerWeights> load_experts(uint32_t layer, uint32_t expert_begin, uint32_t expert_end) const;
  /// kNotSupported: a router that is not known, or that looks up token ids. kBadFile: tensors that are missing or not
  /// as they must be.
  Result<RouterWeights> load_router(uint32_t layer) const;
  /// FP8 shared experts are taken as they are where the cuts lie between blocks of 128, else packed again.
  Result<SharedExperts> load_shared_experts(uint32_t layer) const;

  /// What load_experts(), load_router() and load_shared_experts() would find and do, without reading weights.
  LayerDescription describe(uint32_t layer) const;
  /// The same where config.json is refused for `reason`: what the names alone tell.
  LayerDescription describe_names(uint32_t layer, const Status& reason) const;

 private:
  std::string where(std::string_view what) const;

  Checkpoint checkpoint_;
  ModelConfig config_;
  std::vector<std::string_view> names_;  ///< Of all tensors, sorted; views into `checkpoint_`.
};

}  // namespace megamoe::io
