// How checkpoints name the tensors of their experts: one table, so that a family is a row and not a code path.
#include "io/expert_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "io/text.h"

namespace megamoe::io {
namespace {

/// Where the layers are: of a language model, of one inside a larger model (new and old order), of DeepSeek's own
/// files.
constexpr std::array<std::string_view, 4> kLayerPrefixes = {"model.layers.{}.", "model.language_model.layers.{}.",
                                                            "language_model.model.layers.{}.", "layers.{}."};

/// Everything of an ExpertNaming but where the layers are.
constexpr std::array kStyles = {
    ExpertNaming{"DeepSeek-V3",
                 "",
                 "mlp.experts.",
                 Packing::kPerExpert,
                 {"gate_proj", "up_proj", "down_proj"},
                 ".weight",
                 ".weight_scale_inv"},
    ExpertNaming{"Mixtral",
                 "",
                 "block_sparse_moe.experts.",
                 Packing::kPerExpert,
                 {"w1", "w3", "w2"},
                 ".weight",
                 ".weight_scale_inv"},
    ExpertNaming{"DeepSeek-V4", "", "ffn.experts.", Packing::kPerExpert, {"w1", "w3", "w2"}, ".weight", ".scale"},
    ExpertNaming{"transformers v5",
                 "",
                 "mlp.experts.",
                 Packing::kAllExperts,
                 {"gate_up_proj", "gate_up_proj", "down_proj"},
                 "",
                 "_scale_inv"},
    ExpertNaming{"Llama-4",
                 "",
                 "feed_forward.experts.",
                 Packing::kAllExpertsTransposed,
                 {"gate_up_proj", "gate_up_proj", "down_proj"},
                 "",
                 "_scale_inv"},
    ExpertNaming{"gpt-oss",
                 "",
                 "mlp.experts.",
                 Packing::kAllExpertsMxfp4Blocks,
                 {"gate_up_proj", "gate_up_proj", "down_proj"},
                 "_blocks",
                 "_scales"},
};

/// Models whose files hold the tensors of "transformers v5" with the last two dimensions the other way round.
constexpr std::string_view kTransposedModel = "qwen3_vl_moe";

/// Endings of names that tell how the experts are quantised where that is not loaded.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kOtherSchemes = {{
    {"weight_packed", "packed integers of compressed-tensors"},
    {"qweight", "integers of GPTQ or AWQ"},
    {"qzeros", "integers of GPTQ or AWQ"},
    {"weight_scale_2", "ModelOpt NVFP4"},
    {"input_scale", "statically quantised activations"},
    {"absmax", "bitsandbytes"},
    {"weight_scale", "one scale for a row or tensor"},
}};

std::string layer_text(std::string_view layer_prefix, std::string_view layer) {
  const size_t hole = layer_prefix.find("{}");
  return fmt::format("{}{}{}", layer_prefix.substr(0, hole), layer, layer_prefix.substr(hole + 2));
}

/// Reads a decimal number without leading zeros from the front of `text`, and removes it there.
bool take_number(std::string_view& text, uint64_t& number) {
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number);
  const size_t num_digits = static_cast<size_t>(after - text.data());
  if (error != std::errc() || num_digits == 0 || (text.front() == '0' && num_digits > 1)) return false;
  text.remove_prefix(num_digits);
  return true;
}

std::vector<std::string> strings_of(const std::vector<std::string_view>& names) { return {names.begin(), names.end()}; }

ExpertNaming at_prefix(ExpertNaming style, std::string_view layer_prefix) {
  style.layer_prefix = layer_prefix;
  return style;
}

/// How many of `names`, all with the prefix of `naming`, follow it.
size_t count_parsed(const ExpertNaming& naming, const std::vector<std::string_view>& names, size_t prefix_size) {
  return static_cast<size_t>(std::count_if(names.begin(), names.end(), [&](std::string_view name) {
    ExpertTensorName parsed;
    return parse_expert_tensor(naming, name.substr(prefix_size), parsed);
  }));
}

Status nothing_found(const std::vector<std::string_view>& names, uint32_t layer, std::string_view where) {
  if (const std::vector<uint32_t> layers = layers_with_experts(names);
      !layers.empty() && !std::binary_search(layers.begin(), layers.end(), layer)) {
    const std::string known = layers.size() == 1 ? fmt::format("only layer {} has experts", layers.front())
                                                 : fmt::format("the {} layers with experts are between {} and {}",
                                                               layers.size(), layers.front(), layers.back());
    return {Code::kBadFile, fmt::format("{}: layer {} must have experts, it has none; {}", where, layer, known)};
  }
  std::vector<std::string> known;
  known.reserve(kStyles.size());
  for (const ExpertNaming& style : kStyles) {
    known.push_back(at_prefix(style, kLayerPrefixes.front()).weight_name(layer, 0, Projection::kGate));
  }
  std::vector<std::string> found;
  for (const std::string_view layer_prefix : kLayerPrefixes) {
    for (const std::string_view name : names_with_prefix(names, layer_text(layer_prefix, std::to_string(layer)))) {
      found.emplace_back(name);
    }
  }
  // The most telling names first: those that speak of experts.
  std::stable_partition(found.begin(), found.end(),
                        [](const std::string& name) { return name.find("expert") != std::string::npos; });
  if (found.empty()) found = strings_of(names);
  return {Code::kBadFile,
          fmt::format("{}: layer {} must have expert tensors under a known name such as {}, found {}", where, layer,
                      join_names(known), found.empty() ? "no tensors" : join_names(found))};
}

/// kNotSupported where a name of the layer's experts ends like those of a known scheme that is not loaded.
Status check_scheme(const std::vector<std::string_view>& expert_names, uint32_t layer, std::string_view where) {
  for (const auto& [ending, scheme] : kOtherSchemes) {
    for (const std::string_view name : expert_names) {
      if (!name.ends_with(ending)) continue;
      return {Code::kNotSupported,
              fmt::format("{}: layer {} must hold FP8 in 128 x 128 blocks, MXFP4, BF16, F16 or F32 weights, got {} "
                          "({}); convert the checkpoint",
                          where, layer, scheme, printable(name))};
    }
  }
  return {};
}

}  // namespace

std::string ExpertNaming::block_prefix(uint32_t layer) const {
  constexpr std::string_view kExperts = "experts.";
  return layer_text(layer_prefix, std::to_string(layer)) +
         std::string(experts_infix.substr(0, experts_infix.size() - kExperts.size()));
}

std::string ExpertNaming::prefix(uint32_t layer) const {
  return layer_text(layer_prefix, std::to_string(layer)) + std::string(experts_infix);
}

std::string ExpertNaming::weight_name(uint32_t layer, uint32_t expert, Projection which) const {
  return fmt::format("{}{}{}{}", prefix(layer), packing == Packing::kPerExpert ? fmt::format("{}.", expert) : "",
                     projection[static_cast<size_t>(which)], weight_suffix);
}

std::string ExpertNaming::scale_name(uint32_t layer, uint32_t expert, Projection which) const {
  return fmt::format("{}{}{}{}", prefix(layer), packing == Packing::kPerExpert ? fmt::format("{}.", expert) : "",
                     projection[static_cast<size_t>(which)], scale_suffix);
}

std::string order_text(const ExpertNaming& naming) {
  const auto& [gate, up, down] = naming.projection;
  switch (naming.packing) {
    case Packing::kPerExpert:
      return fmt::format("w13 is {} rows, then {} rows; w2 is {}", gate, up, down);
    case Packing::kAllExperts:
      return fmt::format("w13 is {}, gate rows, then up rows; w2 is {}", gate, down);
    case Packing::kAllExpertsTransposed:
      return fmt::format("w13 is {} transposed, gate columns, then up columns; w2 is {} transposed", gate, down);
    case Packing::kAllExpertsMxfp4Blocks:
      return fmt::format("w13 is {}, its rows gate, up, gate, up put in order; w2 is {}", gate, down);
  }
  return "";
}

bool parse_expert_tensor(const ExpertNaming& naming, std::string_view rest, ExpertTensorName& parsed) {
  parsed.expert = 0;
  if (naming.packing == Packing::kPerExpert) {
    if (!take_number(rest, parsed.expert) || !rest.starts_with('.')) return false;
    rest.remove_prefix(1);
  }
  for (size_t which = 0; which < kNumProjections; ++which) {
    if (!rest.starts_with(naming.projection[which])) continue;
    const std::string_view suffix = rest.substr(naming.projection[which].size());
    if (suffix != naming.weight_suffix && suffix != naming.scale_suffix) continue;
    parsed.projection = static_cast<Projection>(which);
    parsed.is_scale = suffix == naming.scale_suffix;
    return true;
  }
  return false;
}

std::vector<std::string_view> names_with_prefix(const std::vector<std::string_view>& names, std::string_view prefix) {
  std::vector<std::string_view> found;
  for (auto name = std::lower_bound(names.begin(), names.end(), prefix);
       name != names.end() && name->starts_with(prefix); ++name) {
    found.push_back(*name);
  }
  return found;
}

std::vector<uint32_t> layers_with_experts(const std::vector<std::string_view>& names) {
  std::set<uint32_t> layers;
  for (const std::string_view layer_prefix : kLayerPrefixes) {
    const size_t hole = layer_prefix.find("{}");
    const std::string_view before = layer_prefix.substr(0, hole);
    const std::string_view after = layer_prefix.substr(hole + 2);
    for (std::string_view name : names_with_prefix(names, before)) {
      name.remove_prefix(before.size());
      uint64_t layer = 0;
      if (!take_number(name, layer) || layer > UINT32_MAX || !name.starts_with(after)) continue;
      name.remove_prefix(after.size());
      const bool of_experts = std::any_of(kStyles.begin(), kStyles.end(), [&](const ExpertNaming& style) {
        return name.starts_with(style.experts_infix);
      });
      if (of_experts) layers.insert(static_cast<uint32_t>(layer));
    }
  }
  return {layers.begin(), layers.end()};
}

Result<ExpertNaming> find_naming(const std::vector<std::string_view>& names, uint32_t layer,
                                 std::string_view model_type, std::string_view where) {
  std::vector<ExpertNaming> present;
  for (const std::string_view layer_prefix : kLayerPrefixes) {
    for (const ExpertNaming& style : kStyles) {
      ExpertNaming naming = at_prefix(style, layer_prefix);
      const std::string prefix = naming.prefix(layer);
      const std::vector<std::string_view> found = names_with_prefix(names, prefix);
      if (found.empty()) continue;
      MEGAMOE_RETURN_IF_ERROR(check_scheme(found, layer, where));
      if (count_parsed(naming, found, prefix.size()) > 0) present.push_back(naming);
    }
  }
  if (present.empty()) return nothing_found(names, layer, where);
  if (present.size() > 1) {
    return Status(Code::kBadFile, fmt::format("{}: layer {} must name its experts in one way, got {} and {}", where,
                                              layer, present[0].family, present[1].family));
  }
  ExpertNaming& naming = present.front();
  if (naming.packing == Packing::kAllExperts && model_type.starts_with(kTransposedModel)) {
    naming.family = "Qwen3-VL";
    naming.packing = Packing::kAllExpertsTransposed;
  }
  return naming;
}

}  // namespace megamoe::io
