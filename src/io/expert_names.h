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

/// A tensor is named layer_prefix with {} as the layer, then experts_infix, the expert's number, '.', a projection and
/// a suffix.
struct ExpertNaming {
  std::string_view family;                                   ///< As messages call it.
  std::string_view layer_prefix;                             ///< "model.layers.{}."
  std::string_view experts_infix;                            ///< "mlp.experts."
  std::array<std::string_view, kNumProjections> projection;  ///< Gate, up, down.
  std::string_view weight_suffix;                            ///< ".weight"
  std::string_view scale_suffix;                             ///< ".weight_scale_inv", a multiplier.
  bool loadable = false;                                     ///< Others are recognised to be refused by name.

  std::string prefix(uint32_t layer) const;
  std::string weight_name(uint32_t layer, uint32_t expert, Projection which) const;
  std::string scale_name(uint32_t layer, uint32_t expert, Projection which) const;
};

/// All namings, the loadable ones first.
const std::vector<ExpertNaming>& expert_namings();

/// The part of a name that follows the prefix: "12.gate_proj.weight".
struct ExpertTensorName {
  uint64_t expert = 0;
  Projection projection = Projection::kGate;
  bool is_scale = false;
};

/// False where `rest` does not follow `naming`; numbers with leading zeros do not.
bool parse_expert_tensor(const ExpertNaming& naming, std::string_view rest, ExpertTensorName& parsed);

/// Chooses the naming of `layer` among `names` (sorted). kBadFile where no tensor of the layer follows one, listing
/// what was found; kNotSupported for a naming that is recognised but not loadable.
Result<const ExpertNaming*> find_naming(const std::vector<std::string_view>& names, uint32_t layer,
                                        std::string_view where);

/// The names in `names` (sorted) that begin with `prefix`.
std::vector<std::string_view> names_with_prefix(const std::vector<std::string_view>& names, std::string_view prefix);

}  // namespace megamoe::io
