// How checkpoints name the tensors of their experts: one table, so that a family is a row and not a code path.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/status.h"

namespace megamoe::io {

enum class Projection : uint8_t { kGate = 0, kUp, kDown };
inline constexpr size_t kNumProjections = 3;

/// How the matrices of a layer's experts lie in tensors, I = intermediate, H = hidden.
enum class Packing : uint8_t {
  kPerExpert = 0,          ///< A tensor for each projection of each expert: [I, H], [I, H], [H, I].
  kAllExperts,             ///< [E, 2I, H], gate rows then up rows, and [E, H, I].
  kAllExpertsTransposed,   ///< [E, H, 2I], gate columns then up columns, and [E, I, H].
  kAllExpertsMxfp4Blocks,  ///< [E, 2I, H / 32, 16] bytes, rows gate, up, gate, up, ..., and [E, H, I / 32, 16].
};

/// A tensor is named layer_prefix with {} as the layer, then experts_infix, then (kPerExpert) the expert's number and
/// '.', a projection and a suffix.
struct ExpertNaming {
  std::string_view family;         ///< As messages call it.
  std::string_view layer_prefix;   ///< "model.layers.{}."
  std::string_view experts_infix;  ///< "mlp.experts."
  Packing packing = Packing::kPerExpert;
  std::array<std::string_view, kNumProjections> projection;  ///< Gate, up, down; one name twice for both in a tensor.
  std::string_view weight_suffix;                            ///< ".weight"
  std::string_view scale_suffix;                             ///< ".weight_scale_inv", a multiplier.

  std::string prefix(uint32_t layer) const;
  /// What the layer's router and shared experts begin with: "model.layers.3.mlp."
  std::string block_prefix(uint32_t layer) const;
  std::string weight_name(uint32_t layer, uint32_t expert, Projection which) const;
  std::string scale_name(uint32_t layer, uint32_t expert, Projection which) const;
};

/// The part of a name that follows the prefix: "12.gate_proj.weight".
struct ExpertTensorName {
  uint64_t expert = 0;  ///< 0 where a tensor holds all experts.
  Projection projection = Projection::kGate;
  bool is_scale = false;
};

/// "w13 is gate_proj rows, then up_proj rows; w2 is down_proj": the order that the names state.
std::string order_text(const ExpertNaming& naming);

/// False where `rest` does not follow `naming`; numbers with leading zeros do not.
bool parse_expert_tensor(const ExpertNaming& naming, std::string_view rest, ExpertTensorName& parsed);

/// Chooses the naming of `layer` among `names` (sorted), for a model of `model_type`. kBadFile where no tensor of the
/// layer follows a known one, listing what was found; kNotSupported for names of a quantisation that is not loaded.
Result<ExpertNaming> find_naming(const std::vector<std::string_view>& names, uint32_t layer,
                                 std::string_view model_type, std::string_view where);

/// The layers that have experts under any known name, ascending.
std::vector<uint32_t> layers_with_experts(const std::vector<std::string_view>& names);

/// The names in `names` (sorted) that begin with `prefix`.
std::vector<std::string_view> names_with_prefix(const std::vector<std::string_view>& names, std::string_view prefix);

}  // namespace megamoe::io
