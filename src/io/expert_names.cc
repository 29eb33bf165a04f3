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

/// The layers that hold tensors of `naming`, ascending.
std::set<uint64_t> layers_with_experts(const std::vector<std::string_view>& names, const ExpertNaming& naming) {
  std::set<uint64_t> layers;
  const size_t hole = naming.layer_prefix.find("{}");
  const std::string_view before = naming.layer_prefix.substr(0, hole);
  const std::string after = std::string(naming.layer_prefix.substr(hole + 2)) + std::string(naming.experts_infix);
  for (std::string_view name : names_with_prefix(names, before)) {
    name.remove_prefix(before.size());
    uint64_t layer = 0;
    if (take_number(name, layer) && name.starts_with(after)) layers.insert(layer);
  }
  return layers;
}

Status nothing_found(const std::vector<std::string_view>& names, uint32_t layer, std::string_view where) {
  for (const ExpertNaming& naming : expert_namings()) {
    const std::set<uint64_t> layers = layers_with_experts(names, naming);
    if (layers.empty()) continue;
    return {
        Code::kBadFile,
        fmt::format("{}: layer {} must have experts, it has none; the layers with experts are {} to {} ({} of them)",
                    where, layer, *layers.begin(), *layers.rbegin(), layers.size())};
  }
  std::vector<std::string> known;
  std::vector<std::string> found;
  for (const ExpertNaming& naming : expert_namings()) {
    if (naming.loadable) known.push_back(naming.weight_name(layer, 0, Projection::kGate));
    for (const std::string_view name :
         names_with_prefix(names, layer_text(naming.layer_prefix, std::to_string(layer)))) {
      found.emplace_back(name);
    }
  }
  // The most telling names first: those that speak of experts.
  std::stable_partition(found.begin(), found.end(),
                        [](const std::string& name) { return name.find("expert") != std::string::npos; });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  if (found.empty()) found = strings_of(names);
  return {Code::kBadFile,
          fmt::format("{}: layer {} must have expert tensors under a known name such as {}, found {}", where, layer,
                      join_names(known), found.empty() ? "no tensors" : join_names(found))};
}

}  // namespace

std::string ExpertNaming::prefix(uint32_t layer) const {
  return layer_text(layer_prefix, std::to_string(layer)) + std::string(experts_infix);
}

std::string ExpertNaming::weight_name(uint32_t layer, uint32_t expert, Projection which) const {
  return fmt::format("{}{}.{}{}", prefix(layer), expert, projection[static_cast<size_t>(which)], weight_suffix);
}

std::string ExpertNaming::scale_name(uint32_t layer, uint32_t expert, Projection which) const {
  return fmt::format("{}{}.{}{}", prefix(layer), expert, projection[static_cast<size_t>(which)], scale_suffix);
}

const std::vector<ExpertNaming>& expert_namings() {
  static const std::vector<ExpertNaming> kNamings = {
      {"DeepSeek-V3",
       "model.layers.{}.",
       "mlp.experts.",
       {"gate_proj", "up_proj", "down_proj"},
       ".weight",
       ".weight_scale_inv",
       true},
      {"Mixtral",
       "model.layers.{}.",
       "block_sparse_moe.experts.",
       {"w1", "w3", "w2"},
       ".weight",
       ".weight_scale_inv",
       false},
      {"DeepSeek-V4", "layers.{}.", "ffn.experts.", {"w1", "w3", "w2"}, ".weight", ".scale", false},
  };
  return kNamings;
}

bool parse_expert_tensor(const ExpertNaming& naming, std::string_view rest, ExpertTensorName& parsed) {
  if (!take_number(rest, parsed.expert) || !rest.starts_with('.')) return false;
  rest.remove_prefix(1);
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

Result<const ExpertNaming*> find_naming(const std::vector<std::string_view>& names, uint32_t layer,
                                        std::string_view where) {
  std::vector<const ExpertNaming*> present;
  for (const ExpertNaming& naming : expert_namings()) {
    if (!names_with_prefix(names, naming.prefix(layer)).empty()) present.push_back(&naming);
  }
  if (present.empty()) return nothing_found(names, layer, where);
  if (present.size() > 1) {
    return Status(Code::kBadFile, fmt::format("{}: layer {} must name its experts in one way, got {} and {}", where,
                                              layer, present[0]->family, present[1]->family));
  }
  const std::string prefix = present[0]->prefix(layer);
  const std::vector<std::string_view> found = names_with_prefix(names, prefix);
  if (!present[0]->loadable) {
    return Status(
        Code::kNotSupported,
        fmt::format("{}: layer {} must name its experts like DeepSeek-V3, got {} names: {}; rename the tensors", where,
                    layer, present[0]->family, join_names(strings_of(found), 3)));
  }
  const bool numbered = std::any_of(found.begin(), found.end(), [&](std::string_view name) {
    return name.size() > prefix.size() && name[prefix.size()] >= '0' && name[prefix.size()] <= '9';
  });
  if (!numbered) {
    return Status(
        Code::kNotSupported,
        fmt::format("{}: layer {} must have a tensor per expert, got tensors over all experts: {}; split them", where,
                    layer, join_names(strings_of(found), 3)));
  }
  return present[0];
}

}  // namespace megamoe::io
