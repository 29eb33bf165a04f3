// A checkpoint folder as MoE layers: opening it, and the router of a layer.
#include "io/moe_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "io/block_tensors.h"
#include "io/text.h"

namespace megamoe::io {

MoeCheckpoint::MoeCheckpoint(Checkpoint files, ModelConfig config)
    : checkpoint_(std::move(files)), config_(std::move(config)) {
  names_.reserve(checkpoint_.tensors().size());
  for (const Checkpoint::Tensor& tensor : checkpoint_.tensors()) names_.emplace_back(tensor.info->name);
}

Result<MoeCheckpoint> MoeCheckpoint::open(const std::string& folder) {
  Result<ModelConfig> config = read_model_config(folder);
  if (!config.ok()) return config.status();
  Result<Checkpoint> checkpoint = Checkpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  return MoeCheckpoint(std::move(checkpoint).value(), std::move(config).value());
}

std::string MoeCheckpoint::where(std::string_view what) const {
  return fmt::format("{}: {}", what, printable(checkpoint_.folder(), 1000));
}

Result<RouterWeights> MoeCheckpoint::load_router(uint32_t layer) const {
  const std::string place = where("router.load");
  const Result<RouterTensors> tensors = find_router(checkpoint_, config_, names_, layer, place);
  if (!tensors.ok()) return tensors.status();
  RouterWeights router;
  router.config = tensors->config;
  MEGAMOE_RETURN_IF_ERROR(read_floats(tensors->gate, router.gate));
  if (router.config.has_correction_bias) {
    MEGAMOE_RETURN_IF_ERROR(read_floats(tensors->correction_bias, router.correction_bias));
  }
  return router;
}

}  // namespace megamoe::io
