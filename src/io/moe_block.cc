// One rank's part of a MoE layer: loaded whole, shown as views, routed.
#include "io/moe_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/integer.h"
#include "io/weight_reader.h"
#include "routing/logits.h"
#include "routing/views.h"

namespace megamoe::io {
namespace {

template <class Element>
Status choose(const RouterWeights& router, std::span<const Element> hidden_states, std::span<int64_t> topk_ids,
              std::span<float> topk_weights) {
  const uint64_t num_tokens = topk_ids.size() / router.config.top_k;
  const auto hidden = static_cast<uint32_t>(router.gate.size() / router.config.num_experts);
  Buffer<float> logits;
  MEGAMOE_RETURN_IF_ERROR(allocate(logits, num_tokens * router.config.num_experts, "router logits"));
  routing::router_logits(hidden_states, hidden, router.gate.span(), {}, logits.span());
  routing::choose_experts(router.config, logits.span(), router.correction_bias.span(), topk_ids, topk_weights);
  return {};
}

template <class Element>
Status weigh(const SharedExperts& shared, std::span<const Element> hidden_states, std::span<float> shared_weights) {
  if (shared.gate.empty()) {
    std::fill(shared_weights.begin(), shared_weights.end(), 1.0f);
    return {};
  }
  const uint64_t num_tokens = shared_weights.size() / shared.num_experts;
  Buffer<float> weights;
  MEGAMOE_RETURN_IF_ERROR(allocate(weights, num_tokens, "weights of the shared expert"));
  routing::router_logits(hidden_states, static_cast<uint32_t>(shared.gate.size()), shared.gate.span(), {},
                         weights.span());
  routing::sigmoid(weights.span());
  for (uint64_t token = 0; token < num_tokens; ++token) {
    std::fill_n(shared_weights.data() + token * shared.num_experts, shared.num_experts, weights[token]);
  }
  return {};
}

}  // namespace

Result<MoeBlock> load_moe_block(const std::string& folder, uint32_t layer, uint32_t rank, uint32_t num_ranks,
                                BlockParts parts) {
  if (num_ranks == 0 || rank >= num_ranks) {
    return Status(Code::kInvalidArgument,
                  fmt::format("moe_block.load: rank must be below num_ranks, got {} of {}; pass this rank and its "
                              "group's size",
                              rank, num_ranks));
  }
  const Result<MoeCheckpoint> checkpoint = MoeCheckpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  const uint32_t num_experts = checkpoint->config().shape.num_experts;
  if (num_experts % num_ranks != 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("moe_block.load: num_experts must be divisible by the number of ranks, got {} experts on "
                              "{} ranks; use as many ranks as divide it",
                              num_experts, num_ranks));
  }
  MoeBlock block;
  if (parts == BlockParts::kAll) {
    Result<RouterWeights> router = checkpoint->load_router(layer);
    block.router_status = router.status();
    if (!router.ok() && router.status().code() != Code::kNotSupported) return router.status();
    if (router.ok()) block.router = std::move(router).value();
    Result<SharedExperts> shared = checkpoint->load_shared_experts(layer);
    if (!shared.ok()) return shared.status();
    block.shared = std::move(shared).value();
  } else {
    block.router_status = {Code::kNotSupported,
                           "moe_block.load: a router must be loaded before tokens are routed, got the routed experts "
                           "alone as it was asked for; load the layer whole"};
  }
  const uint32_t num_local = num_experts / num_ranks;
  Result<LayerWeights> experts = checkpoint->load_experts(layer, rank * num_local, (rank + 1) * num_local);
  if (!experts.ok()) return experts.status();
  block.experts = std::move(experts).value();
  return block;
}

ExpertWeights weight_views(const MoeBlock& block) {
  const MoeShape& shape = block.experts.shape();
  const int64_t hidden = shape.hidden, intermediate = shape.intermediate;
  const int64_t hidden_blocks = core::ceil_div<int64_t>(hidden, 128);
  const int64_t intermediate_blocks = core::ceil_div<int64_t>(intermediate, 128);
  const auto codes = [](const Buffer<uint8_t>& data, int64_t count, int64_t num_rows, int64_t num_cols) {
    return TensorView::dense(data.data(), DType::kFloat8E4M3, {count, num_rows, num_cols});
  };
  const auto w13_scale = [&](const Buffer<float>& data, int64_t count) {
    return TensorView::dense(data.data(), DType::kFloat32, {count, 2, intermediate_blocks, hidden_blocks});
  };
  const auto w2_scale = [&](const Buffer<float>& data, int64_t count) {
    return TensorView::dense(data.data(), DType::kFloat32, {count, hidden_blocks, intermediate_blocks});
  };
  const LayerWeights& experts = block.experts;
  const int64_t n = experts.num_local_experts();
  ExpertWeights weights;
  weights.w13 = codes(experts.w13, n, 2 * intermediate, hidden);
  weights.w13_scale = w13_scale(experts.w13_scale, n);
  weights.w2 = codes(experts.w2, n, hidden, intermediate);
  weights.w2_scale = w2_scale(experts.w2_scale, n);
  weights.w13_layout = W13Layout::kGateUp;
  weights.scale_format = ScaleFormat::kFloat32;
  if (const int64_t m = block.shared.num_experts; m > 0) {
    weights.shared_w13 = codes(block.shared.w13, m, 2 * intermediate, hidden);
    weights.shared_w13_scale = w13_scale(block.shared.w13_scale, m);
    weights.shared_w2 = codes(block.shared.w2, m, hidden, intermediate);
    weights.shared_w2_scale = w2_scale(block.shared.w2_scale, m);
  }
  return weights;
}

Status choose_experts(const RouterWeights& router, std::span<const uint16_t> hidden_states, std::span<int64_t> topk_ids,
                      std::span<float> topk_weights) {
  return choose(router, hidden_states, topk_ids, topk_weights);
}

Status choose_experts(const RouterWeights& router, std::span<const float> hidden_states, std::span<int64_t> topk_ids,
                      std::span<float> topk_weights) {
  return choose(router, hidden_states, topk_ids, topk_weights);
}

Status weigh_shared_experts(const SharedExperts& shared, std::span<const uint16_t> hidden_states,
                            std::span<float> shared_weights) {
  return weigh(shared, hidden_states, shared_weights);
}

Status weigh_shared_experts(const SharedExperts& shared, std::span<const float> hidden_states,
                            std::span<float> shared_weights) {
  return weigh(shared, hidden_states, shared_weights);
}

Status route(const MoeBlock& block, const TensorView& hidden_states, const TensorView& topk_ids,
             const TensorView& topk_weights, const TensorView& shared_weights) {
  using enum DType;
  using routing::check_tensor;
  using routing::elements;
  MEGAMOE_RETURN_IF_ERROR(block.router_status);
  const MoeShape& shape = block.experts.shape();
  const int64_t num_tokens = hidden_states.shape[0];
  MEGAMOE_RETURN_IF_ERROR(
      check_tensor("hidden_states", hidden_states, {kBFloat16, kFloat32}, {num_tokens, shape.hidden}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor("topk_ids", topk_ids, {kInt64}, {num_tokens, shape.top_k}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor("topk_weights", topk_weights, {kFloat32}, {num_tokens, shape.top_k}));
  if (shared_weights.present()) {
    MEGAMOE_RETURN_IF_ERROR(
        check_tensor("shared_weights", shared_weights, {kFloat32}, {num_tokens, block.shared.num_experts}));
  }
  const auto run = [&](auto tokens) -> Status {
    MEGAMOE_RETURN_IF_ERROR(
        choose_experts(block.router, tokens, elements<int64_t>(topk_ids), elements<float>(topk_weights)));
    if (!shared_weights.present() || block.shared.num_experts == 0) return {};
    return weigh_shared_experts(block.shared, tokens, elements<float>(shared_weights));
  };
  if (hidden_states.dtype == kFloat32) return run(elements<const float>(hidden_states));
  return run(elements<const uint16_t>(hidden_states));
}

}  // namespace megamoe::io
