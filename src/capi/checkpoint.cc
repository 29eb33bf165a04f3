// The C interface to checkpoints and routers: translates structs, as megamoe.cc does for layers.
#include <optional>
#include <string>
#include <utility>

#include "capi/translate.h"
#include "io/moe_block.h"
#include "megamoe/megamoe.h"
#include "routing/views.h"

struct megamoe_checkpoint {
  megamoe::io::MoeBlock block;
  std::string notes;
};

namespace megamoe::capi {
namespace {

static_assert(MEGAMOE_SCORING_SQRTSOFTPLUS == static_cast<int>(routing::Scoring::kSqrtSoftplus) + 1);

TensorView optional_view(const megamoe_tensor* tensor) { return tensor == nullptr ? TensorView{} : view(*tensor); }

std::string lines(const io::MoeBlock& block) {
  std::string text;
  for (const auto* notes : {&block.experts.notes, &block.shared.notes}) {
    for (const std::string& note : *notes) text += (text.empty() ? "" : "\n") + note;
  }
  return text;
}

Status load(const char* folder, const megamoe_checkpoint_options* options, megamoe_checkpoint** checkpoint) {
  constexpr const char* kFunction = "megamoe_checkpoint_load";
  if (folder == nullptr) return null_argument(kFunction, "folder");
  if (checkpoint == nullptr) return null_argument(kFunction, "checkpoint");
  megamoe_checkpoint_options known = {};
  MEGAMOE_RETURN_IF_ERROR(read_struct(kFunction, options, known));
  const auto parts = known.routed_only != 0 ? io::BlockParts::kRoutedOnly : io::BlockParts::kAll;
  Result<io::MoeBlock> block = io::load_moe_block(folder, known.layer, known.rank, known.num_ranks, parts);
  if (!block.ok()) return block.status();
  std::string notes = lines(block.value());
  *checkpoint = new megamoe_checkpoint{std::move(block).value(), std::move(notes)};
  return {};
}

megamoe_checkpoint_info info_of(const megamoe_checkpoint& checkpoint) {
  const io::MoeBlock& block = checkpoint.block;
  const io::LayerWeights& experts = block.experts;
  megamoe_checkpoint_info info = {};
  info.layer = experts.layer;
  info.hidden = experts.shape().hidden;
  info.intermediate = experts.shape().intermediate;
  info.num_experts = experts.shape().num_experts;
  info.top_k = experts.shape().top_k;
  info.expert_begin = experts.expert_begin;
  info.expert_end = experts.expert_end;
  info.num_shared_experts = block.shared.num_experts;
  info.has_shared_weights = block.shared.gate.empty() ? 0 : 1;
  info.has_router = block.has_router() ? 1 : 0;
  info.was_packed = experts.packed_here || block.shared.packed_here ? 1 : 0;
  info.swiglu_clamp = experts.config.swiglu_limit.value_or(0.0f);
  info.routed_scaling = block.has_router() ? block.router.config.scaling : 1.0f;
  info.weight_on_input = experts.config.is_llama4() ? 1 : 0;
  info.model_type = experts.config.model_type.c_str();
  info.notes = checkpoint.notes.c_str();
  return info;
}

megamoe_expert_weights weights_of(const io::MoeBlock& block) {
  const ExpertWeights views = io::weight_views(block);
  megamoe_expert_weights weights = {};
  weights.w13_layout = static_cast<megamoe_w13_layout>(views.w13_layout);
  weights.scale_format = static_cast<megamoe_scale_format>(views.scale_format);
  weights.w13 = tensor(views.w13);
  weights.w13_scale = tensor(views.w13_scale);
  weights.w2 = tensor(views.w2);
  weights.w2_scale = tensor(views.w2_scale);
  weights.shared_w13 = tensor(views.shared_w13);
  weights.shared_w13_scale = tensor(views.shared_w13_scale);
  weights.shared_w2 = tensor(views.shared_w2);
  weights.shared_w2_scale = tensor(views.shared_w2_scale);
  return weights;
}

megamoe_router_config config_of(const routing::RouterConfig& router) {
  megamoe_router_config config = {};
  config.scoring = static_cast<megamoe_scoring>(router.scoring) + 1;
  config.num_experts = router.num_experts;
  config.top_k = router.top_k;
  config.has_correction_bias = router.has_correction_bias ? 1 : 0;
  config.num_groups = router.num_groups;
  config.topk_groups = router.topk_groups;
  config.renormalize = router.renormalize ? 1 : 0;
  config.renormalize_epsilon = router.renormalize_epsilon;
  config.scaling = router.scaling;
  config.weight_on_input = router.weight_on_input ? 1 : 0;
  return config;
}

Status read_router(const megamoe_router_config* given, routing::RouterConfig& router) {
  megamoe_router_config c = {};
  MEGAMOE_RETURN_IF_ERROR(read_struct("megamoe_choose_experts", given, c));
  if (c.scoring < MEGAMOE_SCORING_SOFTMAX || c.scoring > MEGAMOE_SCORING_SQRTSOFTPLUS) {
    return {Code::kInvalidArgument,
            fmt::format("megamoe_choose_experts: scoring must be 1 (softmax), 2 (sigmoid) or 3 (sqrtsoftplus), got {}; "
                        "take the model's",
                        c.scoring)};
  }
  router.scoring = static_cast<routing::Scoring>(c.scoring - 1);
  router.num_experts = c.num_experts;
  router.top_k = c.top_k;
  router.has_correction_bias = c.has_correction_bias != 0;
  if (c.num_groups != 0) router.num_groups = c.num_groups;
  if (c.topk_groups != 0) router.topk_groups = c.topk_groups;
  router.renormalize = c.renormalize != 0;
  router.renormalize_epsilon = c.renormalize_epsilon;
  if (c.scaling != 0) router.scaling = c.scaling;
  router.weight_on_input = c.weight_on_input != 0;
  return {};
}

}  // namespace
}  // namespace megamoe::capi

using namespace megamoe;        // NOLINT(google-build-using-namespace): this file only forwards
using namespace megamoe::capi;  // NOLINT(google-build-using-namespace)

megamoe_code megamoe_checkpoint_load(const char* folder, const megamoe_checkpoint_options* options,
                                     megamoe_checkpoint** checkpoint) {
  return answer(guarded("megamoe_checkpoint_load", [&] { return load(folder, options, checkpoint); }));
}

megamoe_code megamoe_checkpoint_describe(const megamoe_checkpoint* checkpoint, megamoe_checkpoint_info* info) {
  return answer(guarded("megamoe_checkpoint_describe", [&]() -> Status {
    if (checkpoint == nullptr) return null_argument("megamoe_checkpoint_describe", "checkpoint");
    return write_struct("megamoe_checkpoint_describe", info_of(*checkpoint), info);
  }));
}

megamoe_code megamoe_checkpoint_weights(const megamoe_checkpoint* checkpoint, megamoe_expert_weights* weights) {
  return answer(guarded("megamoe_checkpoint_weights", [&]() -> Status {
    if (checkpoint == nullptr) return null_argument("megamoe_checkpoint_weights", "checkpoint");
    return write_struct("megamoe_checkpoint_weights", weights_of(checkpoint->block), weights);
  }));
}

megamoe_code megamoe_checkpoint_router(const megamoe_checkpoint* checkpoint, megamoe_router_config* config) {
  return answer(guarded("megamoe_checkpoint_router", [&]() -> Status {
    if (checkpoint == nullptr) return null_argument("megamoe_checkpoint_router", "checkpoint");
    MEGAMOE_RETURN_IF_ERROR(checkpoint->block.router_status);
    return write_struct("megamoe_checkpoint_router", config_of(checkpoint->block.router.config), config);
  }));
}

megamoe_code megamoe_checkpoint_route(const megamoe_checkpoint* checkpoint, const megamoe_tensor* hidden_states,
                                      const megamoe_tensor* topk_ids, const megamoe_tensor* topk_weights,
                                      const megamoe_tensor* shared_weights) {
  return answer(guarded("megamoe_checkpoint_route", [&]() -> Status {
    if (checkpoint == nullptr) return null_argument("megamoe_checkpoint_route", "checkpoint");
    return io::route(checkpoint->block, optional_view(hidden_states), optional_view(topk_ids),
                     optional_view(topk_weights), optional_view(shared_weights));
  }));
}

void megamoe_checkpoint_destroy(megamoe_checkpoint* checkpoint) { delete checkpoint; }

megamoe_code megamoe_choose_experts(const megamoe_router_config* config, const megamoe_tensor* logits,
                                    const megamoe_tensor* correction_bias, const megamoe_tensor* topk_ids,
                                    const megamoe_tensor* topk_weights) {
  return answer(guarded("megamoe_choose_experts", [&]() -> Status {
    routing::RouterConfig router;
    MEGAMOE_RETURN_IF_ERROR(read_router(config, router));
    return routing::choose_experts(router, optional_view(logits), optional_view(correction_bias),
                                   optional_view(topk_ids), optional_view(topk_weights));
  }));
}
