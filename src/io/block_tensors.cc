// What a MoE block holds beside its experts: found by the names of its family, checked against config.json.
#include "io/block_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "io/text.h"
#include "io/weight_reader.h"

namespace megamoe::io {
namespace {

constexpr std::array<std::string_view, 2> kGateNames = {"gate.weight", "router.weight"};
constexpr std::array<std::string_view, 3> kBiasNames = {"gate.e_score_correction_bias", "e_score_correction_bias",
                                                        "gate.bias"};
constexpr std::string_view kTokenTable = "gate.tid2eid";

bool is_float(const TensorInfo& info) {
  return info.dtype == FileDType::kFloat32 || info.dtype == FileDType::kBFloat16 || info.dtype == FileDType::kFloat16;
}

/// Finds tensors of one block by name and shape; collects what is wrong.
class Finder {
 public:
  Finder(const Checkpoint& checkpoint, std::string prefix) : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}

  /// The tensor under one of `candidates`, names after the prefix.
  template <size_t kCount>
  Checkpoint::Tensor find(const std::array<std::string_view, kCount>& candidates) const {
    for (const std::string_view candidate : candidates) {
      const Checkpoint::Tensor tensor = checkpoint_.find(prefix_ + std::string(candidate));
      if (tensor.info != nullptr) return tensor;
    }
    return {};
  }

  template <size_t kCount>
  Checkpoint::Tensor require(const std::array<std::string_view, kCount>& candidates,
                             const std::vector<uint64_t>& shape) {
    const Checkpoint::Tensor tensor = find(candidates);
    if (tensor.info == nullptr) {
      std::vector<std::string> names;
      names.reserve(kCount);
      for (const std::string_view candidate : candidates) names.push_back(prefix_ + std::string(candidate));
      problems.missing.push_back(fmt::format("{}", fmt::join(names, " or ")));
    } else if (tensor.info->shape != shape) {
      problems.mismatched.push_back(fmt::format("{} must be [{}] by config.json, is {}", printable(tensor.info->name),
                                                fmt::join(shape, ", "), describe(*tensor.info)));
    } else if (!is_float(*tensor.info)) {
      problems.unsupported.push_back(
          fmt::format("{} must be F32, BF16 or F16, is {}", printable(tensor.info->name), describe(*tensor.info)));
    }
    return tensor;
  }

  const std::string& prefix() const { return prefix_; }

  Problems problems;

 private:
  const Checkpoint& checkpoint_;
  std::string prefix_;
};

/// The intermediate size of all shared experts together; 0 where config.json counts none. `must_have`: tensors of
/// shared experts are there.
Status shared_intermediate(const ModelConfig& config, bool single, bool must_have, std::string_view where,
                           uint64_t& intermediate) {
  intermediate = 0;
  if (config.is_llama4()) {
    intermediate = config.shape.intermediate;
    return {};
  }
  if (!single && config.num_shared_experts.has_value()) {
    intermediate = uint64_t{*config.num_shared_experts} * config.shape.intermediate;
  } else if (config.shared_intermediate.has_value()) {
    intermediate = *config.shared_intermediate;
  }
  if (must_have && intermediate == 0) {
    return {Code::kBadFile,
            fmt::format("{}: {} must be given, since the layer has shared experts and nothing is assumed about their "
                        "size, got no such key or 0; add it to config.json",
                        where, single ? "shared_expert_intermediate_size" : "n_shared_experts")};
  }
  return {};
}

}  // namespace

Result<RouterTensors> find_router(const Checkpoint& checkpoint, const ModelConfig& config,
                                  const std::vector<std::string_view>& names, uint32_t layer, std::string_view where) {
  const Result<routing::RouterConfig> router = router_config(config, where);
  if (!router.ok()) return router.status();
  const Result<ExpertNaming> naming = find_naming(names, layer, config.model_type, where);
  if (!naming.ok()) return naming.status();
  Finder finder(checkpoint, naming->block_prefix(layer));
  if (const Checkpoint::Tensor table = finder.find(std::array{kTokenTable}); table.info != nullptr) {
    return Status(Code::kNotSupported,
                  fmt::format("{}: the experts of a token must follow from its hidden state, layer {} looks them up by "
                              "token id ({}); give topk_ids and topk_weights with the tokens",
                              where, layer, printable(table.info->name)));
  }
  RouterTensors tensors;
  tensors.config = router.value();
  const uint64_t num_experts = config.shape.num_experts;
  tensors.gate = finder.require(kGateNames, {num_experts, config.shape.hidden});
  if (tensors.config.has_correction_bias) {
    tensors.correction_bias = finder.require(kBiasNames, {num_experts});
  } else if (const Checkpoint::Tensor bias = finder.find(kBiasNames); bias.info != nullptr) {
    finder.problems.unknown.push_back(bias.info->name);
  }
  MEGAMOE_RETURN_IF_ERROR(finder.problems.status(
      where, fmt::format("layer {} must have the router of {}", layer, printable(config.model_type))));
  return tensors;
}

Result<SharedTensors> find_shared_experts(const Checkpoint& checkpoint, const ModelConfig& config,
                                          const std::vector<std::string_view>& names, uint32_t layer,
                                          std::string_view where) {
  const Result<ExpertNaming> naming = find_naming(names, layer, config.model_type, where);
  if (!naming.ok()) return naming.status();
  const std::string block = naming->block_prefix(layer);
  const std::string many = block + "shared_experts.";
  const std::string one = block + "shared_expert.";
  const bool has_many = !names_with_prefix(names, many).empty();
  const bool has_one = !names_with_prefix(names, one).empty();
  if (has_many && has_one) {
    return Status(Code::kBadFile, fmt::format("{}: layer {} must name its shared experts in one way, got {} and {}",
                                              where, layer, many, one));
  }
  const bool single = has_one || (!has_many && (config.is_llama4() || !config.num_shared_experts.has_value()));
  SharedTensors tensors;
  MEGAMOE_RETURN_IF_ERROR(shared_intermediate(config, single, has_many || has_one, where, tensors.intermediate));
  if (tensors.intermediate == 0) return tensors;

  Finder finder(checkpoint, block);
  const bool short_names = naming->projection[0] == "w1";
  constexpr std::array<std::string_view, kNumProjections> kLong = {"gate_proj", "up_proj", "down_proj"};
  constexpr std::array<std::string_view, kNumProjections> kShort = {"w1", "w3", "w2"};
  // FP8 scales are named like those of the experts, where those are tensors of their own.
  const std::string_view scale_suffix =
      naming->packing == Packing::kPerExpert ? naming->scale_suffix : std::string_view(".weight_scale_inv");
  for (size_t idx = 0; idx < kNumProjections; ++idx) {
    const auto which = static_cast<Projection>(idx);
    const std::string stem = (single ? one : many) + std::string(short_names ? kShort[idx] : kLong[idx]);
    MatrixRequest request;
    request.weight_name = stem + ".weight";
    request.scale_name = stem + std::string(scale_suffix);
    request.extent = extent_of(config.shape.hidden, tensors.intermediate, which);
    request.which = which;
    find_matrix(checkpoint, config, request, tensors.sources[idx], finder.problems);
  }
  // A tensor beside them that would be ignored might be one that matters, a bias or a gate.
  for (const std::string_view name : names_with_prefix(names, single ? one : many)) {
    const bool expected = std::any_of(tensors.sources.begin(), tensors.sources.end(), [&](const Source& source) {
      return (source.weight.info != nullptr && source.weight.info->name == name) ||
             (source.scale.info != nullptr && source.scale.info->name == name);
    });
    if (!expected) finder.problems.unknown.emplace_back(name);
  }
  constexpr std::array<std::string_view, 1> kSharedGate = {"shared_expert_gate.weight"};
  const bool gated = config.shared_intermediate.value_or(0) > 0;
  if (gated) {
    tensors.gate = finder.require(kSharedGate, {1, config.shape.hidden});
  } else if (const Checkpoint::Tensor gate = finder.find(kSharedGate); gate.info != nullptr) {
    finder.problems.unknown.push_back(gate.info->name);
  }
  MEGAMOE_RETURN_IF_ERROR(finder.problems.status(
      where, fmt::format("layer {} must have shared experts of intermediate {}", layer, tensors.intermediate)));
  return tensors;
}

Status read_floats(const Checkpoint::Tensor& tensor, Buffer<float>& values) {
  const TensorInfo& info = *tensor.info;
  Source source;
  source.weight = tensor;
  source.weight_part = {0, info.num_elements(), 1};
  source.format = info.dtype == FileDType::kFloat32    ? WeightFormat::kF32
                  : info.dtype == FileDType::kBFloat16 ? WeightFormat::kBf16
                                                       : WeightFormat::kF16;
  MEGAMOE_RETURN_IF_ERROR(allocate(values, info.num_elements(), printable(info.name)));
  WeightReader reader;
  MEGAMOE_RETURN_IF_ERROR(reader.read_floats(source, {1, info.num_elements()}, values.data()));
  for (uint64_t idx = 0; idx < values.size(); ++idx) {
    if (std::isfinite(values[idx])) continue;
    return {Code::kBadFile, fmt::format("checkpoint.read: every value of \"{}\" must be finite, got {} at index {}",
                                        printable(info.name), values[idx], idx)};
  }
  return {};
}

}  // namespace megamoe::io
