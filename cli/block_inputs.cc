// The router's choice for every token, the weights of shared experts, and the tokens of a model that weighs inputs.
#include "cli/block_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/moe_block.h"
#include "routing/logits.h"

namespace megamoe::cli {
namespace {

/// Tokens of which both routings name the same experts, in any order.
RoutingAgreement compare_routings(const io::LayerInputs& file, const io::Buffer<int64_t>& ids) {
  RoutingAgreement agreement;
  agreement.num_tokens = file.num_tokens;
  const auto sorted = [&](const io::Buffer<int64_t>& all, uint64_t token) {
    const int64_t* const first = all.data() + token * file.top_k;
    std::vector<int64_t> experts(first, first + file.top_k);
    std::sort(experts.begin(), experts.end());
    return experts;
  };
  for (uint64_t token = 0; token < file.num_tokens; ++token) {
    agreement.num_equal += sorted(file.topk_ids, token) == sorted(ids, token) ? 1 : 0;
  }
  return agreement;
}

Status route(const io::RouterWeights& router, LayerData& data) {
  io::LayerInputs& inputs = data.inputs;
  const uint64_t num_slots = inputs.num_tokens * router.config.top_k;
  io::Buffer<int64_t> ids;
  io::Buffer<float> weights;
  MEGAMOE_RETURN_IF_ERROR(allocate(ids, num_slots, "topk_ids"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights, num_slots, "topk_weights"));
  MEGAMOE_RETURN_IF_ERROR(
      io::choose_experts(router, std::as_const(inputs.hidden_states).span(), ids.span(), weights.span()));
  if (inputs.top_k == router.config.top_k) data.agreement = compare_routings(inputs, ids);
  inputs.top_k = router.config.top_k;
  inputs.topk_ids = std::move(ids);
  inputs.topk_weights = std::move(weights);
  return {};
}

/// Where the shared experts have no gate they weigh 1, which needs no tensor.
Status weigh_shared(const io::SharedExperts& shared, io::LayerInputs& inputs) {
  if (shared.gate.empty()) return {};
  MEGAMOE_RETURN_IF_ERROR(
      allocate(inputs.shared_weights, inputs.num_tokens * shared.num_experts, "weights of the shared experts"));
  inputs.num_shared = shared.num_experts;
  return io::weigh_shared_experts(shared, std::as_const(inputs.hidden_states).span(), inputs.shared_weights.span());
}

/// What the shared experts see: the tokens as they are, every routed slot masked.
Status keep_for_shared(const io::SharedExperts& shared, LayerData& data) {
  io::LayerInputs& routed = data.inputs;
  io::LayerInputs& unweighed = data.shared_inputs.emplace();
  unweighed.num_tokens = routed.num_tokens;
  unweighed.hidden = routed.hidden;
  unweighed.top_k = routed.top_k;
  const uint64_t num_slots = routed.num_tokens * routed.top_k;
  MEGAMOE_RETURN_IF_ERROR(allocate(unweighed.hidden_states, routed.hidden_states.size(), "hidden_states"));
  MEGAMOE_RETURN_IF_ERROR(allocate(unweighed.topk_ids, num_slots, "topk_ids"));
  MEGAMOE_RETURN_IF_ERROR(allocate(unweighed.topk_weights, num_slots, "topk_weights"));
  std::copy_n(routed.hidden_states.data(), routed.hidden_states.size(), unweighed.hidden_states.data());
  std::fill_n(unweighed.topk_ids.data(), num_slots, -1);
  std::fill_n(unweighed.topk_weights.data(), num_slots, 0.0f);
  unweighed.shared_weights = std::move(routed.shared_weights);
  unweighed.num_shared = routed.num_shared;
  routed.num_shared = shared.num_experts;
  MEGAMOE_RETURN_IF_ERROR(
      allocate(routed.shared_weights, routed.num_tokens * shared.num_experts, "weights of the shared experts"));
  std::fill_n(routed.shared_weights.data(), routed.shared_weights.size(), 0.0f);
  return {};
}

/// Puts the weights on the tokens; one slot per token. The weight of a masked slot is not read.
void weigh_inputs(LayerData& data) {
  io::LayerInputs& routed = data.inputs;
  for (uint64_t token = 0; token < routed.num_tokens; ++token) {
    if (routed.topk_ids[token] == -1) routed.topk_weights[token] = 1.0f;
  }
  routing::weigh_tokens(routed.hidden_states.span(), routed.hidden, routed.topk_weights.span());
  std::fill_n(routed.topk_weights.data(), routed.topk_weights.size(), 1.0f);
  data.notes.emplace_back("the router's weight is put on the input of the routed experts, as the model does");
}

}  // namespace

Status complete_block(const io::MoeCheckpoint& checkpoint, uint32_t layer, LayerData& data) {
  const auto router = checkpoint.load_router(layer);
  if (!router.ok()) return router.status();
  auto shared = checkpoint.load_shared_experts(layer);
  if (!shared.ok()) return shared.status();
  MEGAMOE_RETURN_IF_ERROR(route(router.value(), data));
  data.notes.push_back(fmt::format("experts chosen by the checkpoint's router ({})", name(router->config.scoring)));
  MEGAMOE_RETURN_IF_ERROR(weigh_shared(shared.value(), data.inputs));
  if (router->config.weight_on_input) {
    if (shared->num_experts > 0) MEGAMOE_RETURN_IF_ERROR(keep_for_shared(shared.value(), data));
    weigh_inputs(data);
  }
  for (const std::string& note : shared->notes) data.notes.push_back(note);
  data.shared = std::move(shared).value();
  return {};
}

Status place_weights(const io::ModelConfig& config, LayerData& data) {
  if (!config.is_llama4()) return {};
  if (data.inputs.top_k != 1) {
    return {
        Code::kNotSupported,
        fmt::format("megamoe run --checkpoint: top-k must be 1 where the router's weight belongs on the input of "
                    "an expert ({}), since a token enters the layer once, got {}; call the layer once for each slot",
                    config.model_type, data.inputs.top_k)};
  }
  weigh_inputs(data);
  return {};
}

}  // namespace megamoe::cli
