// Shapes of the views, said once.
#include "cli/rank_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "api/machine.h"
#include "api/registry.h"
#include "core/reference/layer.h"

namespace megamoe::cli {
namespace {

TensorView codes_view(const io::Buffer<uint8_t>& codes, int64_t experts, int64_t rows, int64_t cols) {
  return TensorView::dense(codes.data(), DType::kFloat8E4M3, {experts, rows, cols});
}

}  // namespace

Result<std::vector<int32_t>> rank_devices(const Execution& execution) {
  std::vector<int32_t> devices;
  if (execution.backend != "cuda") return devices;
  if (const auto backend = api::choose_backend("cuda"); !backend.ok()) return backend.status();
  const uint32_t num_gpus = api::num_gpus();
  for (const uint32_t gpu : execution.gpus)
    if (gpu >= num_gpus)
      return Status(Code::kInvalidArgument,
                    fmt::format("megamoe run --gpus: each must be one of the {} GPUs, counted from 0, got {}; megamoe "
                                "doctor lists them",
                                num_gpus, gpu));
  for (uint32_t rank = 0; rank < execution.num_ranks; ++rank)
    devices.push_back(
        static_cast<int32_t>(execution.gpus.empty() ? rank % num_gpus : execution.gpus[rank % execution.gpus.size()]));
  return devices;
}

ExpertWeights weights_view(const io::LayerWeights& weights, const io::SharedExperts& shared) {
  const int64_t experts = weights.num_local_experts();
  const int64_t hidden = weights.shape().hidden;
  const int64_t intermediate = weights.shape().intermediate;
  const int64_t hidden_blocks = hidden / kScaleGroup;
  const int64_t intermediate_blocks = (intermediate + kScaleGroup - 1) / kScaleGroup;
  ExpertWeights view;
  view.w13 = codes_view(weights.w13, experts, 2 * intermediate, hidden);
  view.w13_scale =
      TensorView::dense(weights.w13_scale.data(), DType::kFloat32, {experts, 2, intermediate_blocks, hidden_blocks});
  view.w2 = codes_view(weights.w2, experts, hidden, intermediate);
  view.w2_scale =
      TensorView::dense(weights.w2_scale.data(), DType::kFloat32, {experts, hidden_blocks, intermediate_blocks});
  if (const int64_t count = shared.num_experts; count > 0) {
    view.shared_w13 = codes_view(shared.w13, count, 2 * intermediate, hidden);
    view.shared_w13_scale =
        TensorView::dense(shared.w13_scale.data(), DType::kFloat32, {count, 2, intermediate_blocks, hidden_blocks});
    view.shared_w2 = codes_view(shared.w2, count, hidden, intermediate);
    view.shared_w2_scale =
        TensorView::dense(shared.w2_scale.data(), DType::kFloat32, {count, hidden_blocks, intermediate_blocks});
  }
  view.w13_layout = W13Layout::kGateUp;
  view.scale_format = ScaleFormat::kFloat32;
  return view;
}

ForwardArgs forward_args(const io::LayerInputs& inputs, uint64_t first_row, uint32_t num_tokens,
                         std::span<uint16_t> output) {
  const int64_t tokens = num_tokens;
  const int64_t hidden = inputs.hidden;
  const int64_t top_k = inputs.top_k;
  const uint64_t first_value = first_row * inputs.hidden;
  const uint64_t first_slot = first_row * inputs.top_k;
  ForwardArgs args;
  args.hidden_states = TensorView::dense(inputs.hidden_states.data() + first_value, DType::kBFloat16, {tokens, hidden});
  args.topk_ids = TensorView::dense(inputs.topk_ids.data() + first_slot, DType::kInt64, {tokens, top_k});
  args.topk_weights = TensorView::dense(inputs.topk_weights.data() + first_slot, DType::kFloat32, {tokens, top_k});
  if (!inputs.shared_weights.empty()) {
    const int64_t num_shared = inputs.num_shared;
    args.shared_weights = TensorView::dense(inputs.shared_weights.data() + first_row * inputs.num_shared,
                                            DType::kFloat32, {tokens, num_shared});
  }
  args.output = TensorView::dense(output.data() + first_value, DType::kBFloat16, {tokens, hidden});
  return args;
}

void add_rows(std::span<const uint16_t> second, std::span<uint16_t> output) {
  constexpr size_t kChunk = size_t{1} << 20;
  for (size_t begin = 0; begin < output.size(); begin += kChunk) {
    const std::array<const uint16_t*, 2> rows = {output.data() + begin, second.data() + begin};
    reference::combine_rows(rows.data(), 2, static_cast<uint32_t>(std::min(kChunk, output.size() - begin)),
                            output.data() + begin);
  }
}

}  // namespace megamoe::cli
