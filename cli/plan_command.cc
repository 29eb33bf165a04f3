// `megamoe plan`: the library's own plan of a layer, to the byte, without allocating it.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/text_format.h"
#include "io/model_config.h"

namespace megamoe::cli {
namespace {

struct PlannedLayer {
  std::string title;
  MoeShape shape;
  std::optional<float> clamp;
  uint32_t num_shared_experts = 0;
};

Result<PlannedLayer> describe_layer(const PlanOptions& options) {
  PlannedLayer layer;
  if (options.layer.model) {
    layer.title = fmt::format("model {} ({})", options.layer.model->name, options.layer.model->title);
    layer.shape = options.layer.model->shape;
    layer.clamp = options.layer.model->clamp;
    return layer;
  }
  auto config = io::read_model_config(options.layer.checkpoint);
  if (!config.ok()) return config.status();
  if (config->num_layers && options.layer.layer >= *config->num_layers) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("megamoe plan --layer: the layer must be below {}, the layers of {}, got {}; count from 0",
                    *config->num_layers, options.layer.checkpoint, options.layer.layer));
  }
  layer.title = fmt::format("checkpoint {}, layer {}", options.layer.checkpoint, options.layer.layer);
  layer.shape = config->shape;
  layer.clamp = config->swiglu_limit;
  layer.num_shared_experts = static_cast<uint32_t>(
      (config->total_shared_intermediate() + config->shape.intermediate - 1) / config->shape.intermediate);
  return layer;
}

/// Of one rank: codes and scales of its experts.
uint64_t weight_bytes_per_rank(const PlannedLayer& layer, uint32_t num_ranks) {
  const MoeShape& shape = layer.shape;
  const uint64_t codes = uint64_t{3} * shape.hidden * shape.intermediate;
  const uint64_t blocks = uint64_t{shape.hidden / kScaleGroup} * ((shape.intermediate + kScaleGroup - 1) / kScaleGroup);
  return (shape.num_experts / num_ranks + layer.num_shared_experts) * (codes + 3 * blocks * sizeof(float));
}

void print_plan(const PlannedLayer& layer, const PlanOptions& options, const LayerPlan& plan) {
  const MoeShape& shape = layer.shape;
  fmt::print("layer      {}\n", layer.title);
  fmt::print("shape      hidden {}, intermediate {}, {} experts, top-{}{}{}\n", shape.hidden, shape.intermediate,
             shape.num_experts, shape.top_k,
             layer.num_shared_experts > 0 ? fmt::format(", {} shared", layer.num_shared_experts) : "",
             layer.clamp ? fmt::format(", SwiGLU clamp {:g}", *layer.clamp) : "");
  fmt::print("ranks      {} on {}, {} experts on each, up to {} tokens on each\n", options.execution.num_ranks,
             plan.backend, shape.num_experts / options.execution.num_ranks, options.max_tokens_per_rank);
  fmt::print("kernel     {}\n", plan.kernel);
  if (!plan.choice.empty()) fmt::print("choice     {}\n", plan.choice);
  fmt::print(
      "blocks     {} rows; rings of {} token blocks and {} activation blocks; {} blocks share a pass; lag {} units\n",
      plan.block_rows, plan.token_ring_blocks, plan.act_ring_blocks, plan.unit_blocks, plan.lag_units);
  fmt::print("schedule   {}\n", plan.schedule);
  fmt::print("roles\n");
  for (const RoleInfo& role : plan.roles) {
    const std::string registers = role.registers == 0 ? "" : fmt::format(", {} registers each", role.registers);
    fmt::print("  {:<24}{:>6} {}{}\n", role.role, role.num_threads, role.num_threads == 1 ? "thread" : "threads",
               registers);
  }
  fmt::print("workspace of each rank\n");
  fmt::print("  {:<24}{:>16}{:>18}  {}\n", "region", "bytes", "offset", "reach");
  for (const RegionInfo& region : plan.regions) {
    fmt::print("  {:<24}{:>16}{:>18}  {}\n", region.name, region.bytes, region.offset_bytes, region.reach);
  }
  fmt::print("  {:<24}{:>16}  ({})\n", "total", plan.workspace_bytes, bytes_text(plan.workspace_bytes));
  const uint64_t weights = weight_bytes_per_rank(layer, options.execution.num_ranks);
  fmt::print("weights of each rank (the caller's)\n  {:<24}{:>16}  ({})\n", "w13, w2 and scales", weights,
             bytes_text(weights));
}

void print_plan_json(const PlannedLayer& layer, const PlanOptions& options, const LayerPlan& plan) {
  JsonWriter json;
  begin_answer(json, "plan", Verdict::kOk);
  json.key("layer").text(layer.title);
  json.key("backend").text(plan.backend);
  json.key("ranks").whole(options.execution.num_ranks);
  json.key("max_tokens_per_rank").whole(options.max_tokens_per_rank);
  json.key("shape");
  write_shape(json, layer.shape);
  json.key("shared_experts").whole(layer.num_shared_experts);
  json.key("swiglu_clamp");
  layer.clamp ? json.real(*layer.clamp) : json.null();
  json.key("kernel").text(plan.kernel);
  json.key("schedule").text(plan.schedule);
  json.key("choice").text(plan.choice);
  json.key("predicted_us");
  plan.predicted_us > 0 ? json.real(plan.predicted_us) : json.null();
  json.key("block_rows").whole(plan.block_rows);
  json.key("token_ring_blocks").whole(plan.token_ring_blocks);
  json.key("act_ring_blocks").whole(plan.act_ring_blocks);
  json.key("unit_blocks").whole(plan.unit_blocks);
  json.key("lag_units").whole(plan.lag_units);
  json.key("roles").begin_array();
  for (const RoleInfo& role : plan.roles) {
    json.begin_object();
    json.key("role").text(role.role);
    json.key("num_threads").whole(role.num_threads);
    json.key("registers").whole(role.registers);
    json.end_object();
  }
  json.end_array();
  json.key("regions").begin_array();
  for (const RegionInfo& region : plan.regions) {
    json.begin_object();
    json.key("name").text(region.name);
    json.key("bytes").whole(region.bytes);
    json.key("offset_bytes").whole(region.offset_bytes);
    json.key("reach").text(region.reach);
    json.end_object();
  }
  json.end_array();
  json.key("workspace_bytes").whole(plan.workspace_bytes);
  json.key("weight_bytes").whole(weight_bytes_per_rank(layer, options.execution.num_ranks));
  json.end_object();
  print_json(json);
}

}  // namespace

Result<Verdict> plan_command(const Arguments& arguments) {
  auto options = plan_options(arguments);
  if (!options.ok()) return options.status();
  auto layer = describe_layer(options.value());
  if (!layer.ok()) return layer.status();
  MEGAMOE_RETURN_IF_ERROR(check_ranks("megamoe plan", layer->shape.num_experts, options->execution.num_ranks));
  auto plan = MoeLayer::plan(layer_config(options->execution, layer->shape, layer->clamp, options->max_tokens_per_rank,
                                          layer->num_shared_experts),
                             options->execution.num_ranks);
  if (!plan.ok()) return plan.status();
  if (arguments.json) {
    print_plan_json(layer.value(), options.value(), plan.value());
  } else {
    print_plan(layer.value(), options.value(), plan.value());
  }
  return Verdict::kOk;
}

}  // namespace megamoe::cli
