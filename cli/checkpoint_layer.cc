// A layer out of files: configuration first, then tokens, then each rank's experts, every contradiction before any
// work.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cli/block_inputs.h"
#include "cli/layer_data.h"
#include "cli/progress.h"
#include "cli/rank_team.h"
#include "io/moe_checkpoint.h"

namespace megamoe::cli {
namespace {

Status check_inputs(const RunOptions& options, const MoeShape& shape, const io::LayerInputs& inputs) {
  if (inputs.hidden != shape.hidden) {
    return {Code::kInvalidArgument,
            fmt::format("megamoe run --inputs: hidden_states of {} must have {} columns, the hidden size of the "
                        "checkpoint, got {}; give tokens of this model",
                        options.inputs, shape.hidden, inputs.hidden)};
  }
  if (inputs.top_k != shape.top_k && inputs.top_k != 0) {
    return {Code::kInvalidArgument,
            fmt::format("megamoe run --inputs: topk_ids of {} must have {} slots for each token, the top-k of the "
                        "checkpoint, got {}; give the routing of this model",
                        options.inputs, shape.top_k, inputs.top_k)};
  }
  return {};
}

/// What is run and what it is compared with, where options leave that to the file.
struct Choice {
  bool whole_block = false;
  std::string compare;  ///< Empty: nothing.
};

Result<Choice> choose_part(const RunOptions& options) {
  constexpr std::string_view kBlockOutput = "output_fp32";
  const auto names = io::read_tensor_names(options.inputs);
  if (!names.ok()) return names.status();
  const auto has = [&](std::string_view name) { return std::find(names->begin(), names->end(), name) != names->end(); };
  Choice choice;
  const bool has_routing = (has("topk_ids") || has("experts_in1")) && (has("topk_weights") || has("experts_in2"));
  const bool wants_block_output =
      options.compare.empty() ? has(kBlockOutput) : options.compare == kBlockOutput || options.compare == "output";
  choice.whole_block =
      options.part == BlockPart::kBlock || (options.part == BlockPart::kAuto && (!has_routing || wants_block_output));
  choice.compare = options.compare;
  if (options.compare.empty() && choice.whole_block && has(kBlockOutput)) choice.compare = kBlockOutput;
  return choice;
}

Result<io::FloatRows> load_compare(const RunOptions& options, const std::string& name, const LayerData& data) {
  auto compare = io::read_compare(options.inputs, name);
  if (!compare.ok()) return compare;
  if (compare->num_rows != data.inputs.num_tokens || compare->num_cols != data.shape.hidden) {
    return Status(Code::kInvalidArgument,
                  fmt::format("megamoe run --compare: {} must be [{}, {}], a row for each token, got [{}, {}]; give a "
                              "tensor that holds the layer's output",
                              name, data.inputs.num_tokens, data.shape.hidden, compare->num_rows, compare->num_cols));
  }
  return compare;
}

/// The rows [first_token, + num_tokens) of `all`.
Result<io::LayerInputs> rows_of(const io::LayerInputs& all, uint64_t first_token, uint64_t num_tokens) {
  io::LayerInputs part;
  part.num_tokens = num_tokens;
  part.hidden = all.hidden;
  part.top_k = all.top_k;
  Status status;
  const auto copy = [&](const auto& from, auto& to, uint64_t num_columns) {
    auto rows = std::remove_reference_t<decltype(to)>::allocate(num_tokens * num_columns, "this rank's tokens");
    if (status.ok()) status = rows.status();
    if (!rows.ok()) return;
    to = std::move(rows).value();
    std::copy_n(from.data() + first_token * num_columns, num_tokens * num_columns, to.data());
  };
  copy(all.hidden_states, part.hidden_states, all.hidden);
  copy(all.topk_ids, part.topk_ids, all.top_k);
  copy(all.topk_weights, part.topk_weights, all.top_k);
  if (!status.ok()) return status;
  return part;
}

}  // namespace

std::vector<uint32_t> balanced_parts(uint64_t num_tokens, uint32_t num_ranks) {
  std::vector<uint32_t> parts(num_ranks, static_cast<uint32_t>(num_tokens / num_ranks));
  for (uint32_t rank = 0; rank < num_tokens % num_ranks; ++rank) parts[rank] += 1;
  return parts;
}

Result<LayerData> load_checkpoint_layer(const RunOptions& options, RankRange ranks) {
  const uint32_t num_ranks = options.execution.num_ranks;
  const auto checkpoint = io::MoeCheckpoint::open(options.layer.checkpoint);
  if (!checkpoint.ok()) return checkpoint.status();
  const io::ModelConfig& config = checkpoint->config();
  LayerData data;
  data.title = fmt::format("checkpoint {}, layer {}", options.layer.checkpoint, options.layer.layer);
  data.shape = config.shape;
  data.clamp = config.swiglu_limit;
  MEGAMOE_RETURN_IF_ERROR(check_ranks("megamoe run", data.shape.num_experts, num_ranks));

  const auto choice = choose_part(options);
  if (!choice.ok()) return choice.status();
  data.whole_block = choice->whole_block;
  auto inputs = io::read_layer_inputs(options.inputs,
                                      data.whole_block ? io::RoutingInFile::kOptional : io::RoutingInFile::kRequired);
  if (!inputs.ok()) return inputs.status();
  MEGAMOE_RETURN_IF_ERROR(check_inputs(options, data.shape, inputs.value()));
  data.inputs = std::move(inputs).value();
  data.tokens_per_rank = balanced_parts(data.inputs.num_tokens, num_ranks);
  data.ranks = ranks;
  if (!choice->compare.empty() && ranks.begin == 0) {
    auto compare = load_compare(options, choice->compare, data);
    if (!compare.ok()) return compare.status();
    data.compare = std::move(compare).value();
    data.compare_name = choice->compare;
  }
  if (!data.holds_all_ranks()) {
    const uint64_t first_token = data.tokens_before(ranks.begin);
    auto part = rows_of(data.inputs, first_token, data.tokens_before(ranks.end) - first_token);
    if (!part.ok()) return part.status();
    data.inputs = std::move(part).value();
  }
  MEGAMOE_RETURN_IF_ERROR(data.whole_block ? complete_block(checkpoint.value(), options.layer.layer, data)
                                           : place_weights(config, data));
  const LayerConfig layer =
      layer_config(options.execution, data.shape, data.clamp, data.tokens_per_rank.front(), data.shared.num_experts);
  if (auto plan = MoeLayer::plan(layer, num_ranks); !plan.ok()) return plan.status();

  const uint32_t experts_per_rank = data.shape.num_experts / num_ranks;
  data.weights.resize(ranks.count());
  Progress progress("loading experts", uint64_t{experts_per_rank} * ranks.count());
  MEGAMOE_RETURN_IF_ERROR(for_each_rank(ranks.count(), [&](uint32_t held) -> Status {
    const uint32_t begin = (ranks.begin + held) * experts_per_rank;
    auto weights = checkpoint->load_experts(options.layer.layer, begin, begin + experts_per_rank);
    if (!weights.ok()) return weights.status();
    data.weights[held] = std::move(weights).value();
    progress.advance(experts_per_rank);
    return {};
  }));
  data.weights_were_fp8 =
      !data.shared.packed_here && std::none_of(data.weights.begin(), data.weights.end(),
                                               [](const io::LayerWeights& weights) { return weights.packed_here; });
  return data;
}

}  // namespace megamoe::cli
