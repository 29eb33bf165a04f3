// What a MoE block holds beside its experts: the tensors of its router and of its shared experts.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "io/buffer.h"
#include "io/checkpoint.h"
#include "io/expert_names.h"
#include "io/model_config.h"
#include "io/weight_source.h"
#include "megamoe/status.h"
#include "routing/router.h"

namespace megamoe::io {

struct RouterTensors {
  routing::RouterConfig config;
  Checkpoint::Tensor gate;             ///< [E, H].
  Checkpoint::Tensor correction_bias;  ///< [E]; none without config.has_correction_bias.
};

/// `names`: of all tensors, sorted.
Result<RouterTensors> find_router(const Checkpoint& checkpoint, const ModelConfig& config,
                                  const std::vector<std::string_view>& names, uint32_t layer, std::string_view where);

struct SharedTensors {
  uint64_t intermediate = 0;  ///< Of all shared experts together; 0 where the layer has none.
  std::array<Source, kNumProjections> sources;
  Checkpoint::Tensor gate;  ///< [1, H]; none where they always weigh 1.
};

Result<SharedTensors> find_shared_experts(const Checkpoint& checkpoint, const ModelConfig& config,
                                          const std::vector<std::string_view>& names, uint32_t layer,
                                          std::string_view where);

/// Reads a tensor of F32, BF16 or F16, exactly. kBadFile naming it where a value is not finite.
Status read_floats(const Checkpoint::Tensor& tensor, Buffer<float>& values);

}  // namespace megamoe::io
