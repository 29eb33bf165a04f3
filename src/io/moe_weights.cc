// The experts of one layer: checked as a whole, then read.
#include "io/moe_weights.h"

#include <fmt/format.h>

#include "io/expert_plan.h"
#include "io/moe_checkpoint.h"
#include "io/weight_reader.h"

namespace megamoe::io {
namespace {

Status read_experts(const ExpertPlan& plan, LayerWeights& weights) {
  const MoeShape& shape = weights.shape();
  const uint64_t num_experts = weights.num_local_experts();
  const Extent gate = extent_of(shape.hidden, shape.intermediate, Projection::kGate);
  const Extent down = extent_of(shape.hidden, shape.intermediate, Projection::kDown);
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w13, num_experts * 2 * gate.num_elements(), "w13"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w13_scale, num_experts * 2 * gate.num_blocks(), "w13_scale"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w2, num_experts * down.num_elements(), "w2"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w2_scale, num_experts * down.num_blocks(), "w2_scale"));
  WeightReader reader;
  for (uint32_t expert = weights.expert_begin; expert < weights.expert_end; ++expert) {
    const uint64_t local_expert = expert - weights.expert_begin;
    for (uint64_t half = 0; half < 2; ++half) {
      const uint64_t place = local_expert * 2 + half;
      MEGAMOE_RETURN_IF_ERROR(reader.read(plan.source(expert, half == 0 ? Projection::kGate : Projection::kUp), gate,
                                          weights.w13.data() + place * gate.num_elements(),
                                          weights.w13_scale.data() + place * gate.num_blocks()));
    }
    MEGAMOE_RETURN_IF_ERROR(reader.read(plan.source(expert, Projection::kDown), down,
                                        weights.w2.data() + local_expert * down.num_elements(),
                                        weights.w2_scale.data() + local_expert * down.num_blocks()));
  }
  weights.packed_here = reader.has_packed();
  weights.notes.push_back(fmt::format("{} names: {}", plan.naming().family, order_text(plan.naming())));
  reader.add_notes(weights.notes);
  return {};
}

}  // namespace

Result<LayerWeights> MoeCheckpoint::load_experts(uint32_t layer, uint32_t expert_begin, uint32_t expert_end) const {
  const std::string place = where("moe_weights.load");
  const uint32_t num_experts = config_.shape.num_experts;
  if (expert_begin >= expert_end || expert_end > num_experts) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: the experts asked for must be a range inside [0, {}), got [{}, {})", place,
                              num_experts, expert_begin, expert_end));
  }
  const Result<ExpertNaming> naming = find_naming(names_, layer, config_.model_type, place);
  if (!naming.ok()) return naming.status();
  ExpertPlan plan(checkpoint_, config_, layer, naming.value());
  MEGAMOE_RETURN_IF_ERROR(plan.check(names_, place));
  LayerWeights weights;
  weights.config = config_;
  weights.layer = layer;
  weights.expert_begin = expert_begin;
  weights.expert_end = expert_end;
  MEGAMOE_RETURN_IF_ERROR(read_experts(plan, weights));
  return weights;
}

Result<LayerWeights> load_moe_layer(const std::string& folder, uint32_t layer, uint32_t expert_begin,
                                    uint32_t expert_end) {
  const Result<MoeCheckpoint> checkpoint = MoeCheckpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  return checkpoint->load_experts(layer, expert_begin, expert_end);
}

Result<LayerWeights> load_moe_layer(const std::string& folder, uint32_t layer) {
  const Result<MoeCheckpoint> checkpoint = MoeCheckpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  return checkpoint->load_experts(layer, 0, checkpoint->config().shape.num_experts);
}

}  // namespace megamoe::io
