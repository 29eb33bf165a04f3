// From the arguments of a call to the rules by which its ids and weights are read.
#include "backends/backend.h"

namespace megamoe::backends {

protocol::SlotRules slot_rules(const LayerConfig& config, const protocol::RankView& view, const ForwardArgs& args) {
  const protocol::WorkspaceSpec& spec = view.spec;
  protocol::SlotRules rules;
  rules.rank = view.rank;
  rules.routed_slots = spec.routed_slots();
  rules.num_physical = config.shape.num_experts;
  rules.num_ids = config.num_logical_experts != 0 ? config.num_logical_experts : rules.num_physical;
  rules.routed_local = spec.routed_local_experts();
  rules.shared_experts = spec.shared_experts;
  rules.absent = absent_ranks(args, spec.num_ranks);
  const TensorView& map = args.expert_map;
  if (map.present()) {
    rules.expert_map = static_cast<const int32_t*>(map.data);
    rules.map_expert_stride = map.strides[0];
    rules.map_copy_stride = map.num_dims == 2 ? map.strides[1] : 0;
    rules.max_copies = map.num_dims == 2 ? static_cast<uint32_t>(map.shape[1]) : 1;
  }
  rules.routed_scaling = config.routed_scaling;
  if (args.shared_weights.present()) {
    rules.shared_weights = static_cast<const float*>(args.shared_weights.data);
    rules.shared_token_stride = args.shared_weights.strides[0];
    rules.shared_slot_stride = args.shared_weights.strides[1];
  }
  rules.renormalizes = args.renormalize_weights && (rules.expert_map != nullptr || !rules.absent.empty());
  return rules;
}

}  // namespace megamoe::backends
