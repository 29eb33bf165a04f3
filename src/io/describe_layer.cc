// How a layer is stored and what would be done with it, in words.
#include <fmt/format.h>

#include "io/block_tensors.h"
#include "io/expert_plan.h"
#include "io/moe_checkpoint.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

std::string text_of(const Checkpoint::Tensor& tensor) {
  return tensor.info == nullptr ? "" : fmt::format("{} {}", printable(tensor.info->name), describe(*tensor.info));
}

std::string router_text(const RouterTensors& tensors) {
  const routing::RouterConfig& config = tensors.config;
  std::string text(name(config.scoring));
  if (config.has_correction_bias) text += " + correction bias";
  text += fmt::format(", top-{}", config.top_k);
  if (config.topk_groups < config.num_groups) {
    text += fmt::format(" in the best {} of {} groups", config.topk_groups, config.num_groups);
  }
  if (config.renormalize) text += ", renormalised";
  if (config.scaling != 1.0f) text += fmt::format(", x {:g}", config.scaling);
  if (config.weight_on_input) text += ", the weight on the input";
  return text + fmt::format("; {}", text_of(tensors.gate));
}

std::string shared_text(const SharedTensors& tensors, const MoeShape& shape) {
  if (tensors.intermediate == 0) return "";
  return fmt::format("intermediate {} as {} of {}{}; {}", tensors.intermediate,
                     core::ceil_div<uint64_t>(tensors.intermediate, shape.intermediate), shape.intermediate,
                     tensors.gate.info == nullptr ? "" : ", weighed by a sigmoid gate",
                     text_of(tensors.sources.front().weight));
}

}  // namespace

LayerDescription MoeCheckpoint::describe(uint32_t layer) const {
  LayerDescription description;
  description.layer = layer;
  const std::string place = where("inspect");
  const Result<ExpertNaming> naming = find_naming(names_, layer, config_.model_type, place);
  if (!naming.ok()) {
    description.experts_status = description.router_status = description.shared_status = naming.status();
    return description;
  }
  description.family = naming->family;
  description.order = order_text(naming.value());
  ExpertPlan plan(checkpoint_, config_, layer, naming.value());
  description.experts_status = plan.check(names_, place);
  const Source& first = plan.source(0, Projection::kGate);
  description.weight = text_of(first.weight);
  description.scale = text_of(first.scale);
  if (description.experts_status.ok()) description.format = name(first.format);

  const Result<RouterTensors> router = find_router(checkpoint_, config_, names_, layer, place);
  description.router_status = router.status();
  if (router.ok()) description.router = router_text(router.value());
  const Result<SharedTensors> shared = find_shared_experts(checkpoint_, config_, names_, layer, place);
  description.shared_status = shared.status();
  if (shared.ok()) description.shared = shared_text(shared.value(), config_.shape);
  return description;
}

LayerDescription MoeCheckpoint::describe_names(uint32_t layer, const Status& reason) const {
  LayerDescription description;
  description.layer = layer;
  description.experts_status = description.router_status = description.shared_status = reason;
  const Result<ExpertNaming> naming = find_naming(names_, layer, config_.model_type, where("inspect"));
  if (!naming.ok()) return description;
  description.family = naming->family;
  description.order = order_text(naming.value());
  const Checkpoint::Tensor weight = checkpoint_.find(naming->weight_name(layer, 0, Projection::kGate));
  description.weight = text_of(weight);
  description.scale = text_of(checkpoint_.find(naming->scale_name(layer, 0, Projection::kGate)));
  return description;
}

}  // namespace megamoe::io
