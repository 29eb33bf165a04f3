// What a (token, slot) means: which expert of the layer it goes to, and with which weight. Applied wherever ids and
// weights are read, so that no tensor is rewritten.
#pragma once

#include "core/portable.h"
#include "protocol/error_record.h"

namespace megamoe::protocol {

inline constexpr int32_t kMaskedSlot = -1;
inline constexpr int32_t kBadSlot = -2;  ///< The caller's id, or the map's entry, is no expert.

/// One rank's rules in one call. Slots [0, routed_slots) are the caller's, the ones after them its shared experts'.
/// Experts are counted as the protocol does: each rank's routed ones, then its shared ones.
struct SlotRules {
  uint32_t rank = 0;
  uint32_t routed_slots = 0;  ///< K.
  uint32_t num_ids = 0;       ///< Ids are in [0, num_ids): logical experts where there is a map, else physical ones.
  uint32_t num_physical = 0;  ///< Routed experts of all ranks.
  uint32_t routed_local = 0;  ///< Routed experts of each rank.
  uint32_t shared_experts = 0;
  RankSet absent;                       ///< Slots of their experts are masked.
  const int32_t* expert_map = nullptr;  ///< [num_ids][max_copies], or null.
  int64_t map_expert_stride = 0;        ///< Elements, like the other strides.
  int64_t map_copy_stride = 0;
  uint32_t max_copies = 0;
  float routed_scaling = 1.0f;
  const float* shared_weights = nullptr;  ///< [num_tokens][shared_experts], or null: 1.
  int64_t shared_token_stride = 0;
  int64_t shared_slot_stride = 0;
  bool renormalizes = false;

  /// Whether experts are other ones than the ids say.
  MEGAMOE_HD constexpr bool changes_ids() const {
    return shared_experts != 0 || expert_map != nullptr || !absent.empty();
  }
  MEGAMOE_HD constexpr int32_t map_entry(uint32_t logical, uint32_t copy) const {
    return expert_map[logical * map_expert_stride + copy * map_copy_stride];
  }
  MEGAMOE_HD constexpr bool is_map_value(int32_t value) const {
    return value >= -1 && (value < 0 || static_cast<uint32_t>(value) < num_physical);
  }
};

/// The physical expert that stands for a logical one in a token: copy (token + rank) mod copies; -1 where it has none.
MEGAMOE_HD inline int32_t physical_expert(const SlotRules& rules, uint32_t token, uint32_t logical) {
  uint32_t num_copies = 0;
  while (num_copies < rules.max_copies && rules.map_entry(logical, num_copies) != -1) ++num_copies;
  return num_copies == 0 ? -1 : rules.map_entry(logical, (token + rules.rank) % num_copies);
}

/// The expert of a slot of the caller whose id is `id`: kMaskedSlot, kBadSlot or the protocol's number.
MEGAMOE_HD inline int32_t routed_expert(const SlotRules& rules, uint32_t token, int64_t id) {
  if (id == -1) return kMaskedSlot;
  if (id < 0 || id >= int64_t{rules.num_ids}) return kBadSlot;
  int32_t physical = static_cast<int32_t>(id);
  if (rules.expert_map != nullptr) physical = physical_expert(rules, token, static_cast<uint32_t>(id));
  if (physical == -1) return kMaskedSlot;
  if (!rules.is_map_value(physical)) return kBadSlot;
  const uint32_t owner = static_cast<uint32_t>(physical) / rules.routed_local;
  if (rules.absent.contains(owner)) return kMaskedSlot;
  return physical + static_cast<int32_t>(rules.shared_experts * owner);
}

/// The expert of any slot.
/// @param id_at  id_at(token, slot): the caller's id; asked only for its own slots
template <class IdAt>
MEGAMOE_HD int32_t slot_expert(const SlotRules& rules, uint32_t token, uint32_t slot, IdAt id_at) {
  if (slot < rules.routed_slots) return routed_expert(rules, token, id_at(token, slot));
  const uint32_t local_experts = rules.routed_local + rules.shared_experts;
  return static_cast<int32_t>(rules.rank * local_experts + rules.routed_local + (slot - rules.routed_slots));
}

/// By what the weights of a token are multiplied to make up for slots that the map or an absent rank masks: FP32 sums
/// in slot order. 1 where there is no such slot, and where the weights that are left add up to 0.
template <class IdAt, class WeightAt>
MEGAMOE_HD float make_up_factor(const SlotRules& rules, uint32_t token, IdAt id_at, WeightAt weight_at) {
  float all = 0.0f, left = 0.0f;
  bool is_short = false;
  for (uint32_t slot = 0; slot < rules.routed_slots; ++slot) {
    const int64_t id = id_at(token, slot);
    if (id == -1) continue;
    const float weight = weight_at(token, slot);
    all += weight;
    if (routed_expert(rules, token, id) == kMaskedSlot) {
      is_short = true;
    } else {
      left += weight;
    }
  }
  return is_short && left != 0.0f ? all / left : 1.0f;
}

/// The weight of a slot that is not masked.
template <class IdAt, class WeightAt>
MEGAMOE_HD float slot_weight(const SlotRules& rules, uint32_t token, uint32_t slot, IdAt id_at, WeightAt weight_at) {
  if (slot >= rules.routed_slots) {
    if (rules.shared_weights == nullptr) return 1.0f;
    return rules
        .shared_weights[token * rules.shared_token_stride + (slot - rules.routed_slots) * rules.shared_slot_stride];
  }
  float weight = weight_at(token, slot);
  if (rules.renormalizes) weight *= make_up_factor(rules, token, id_at, weight_at);
  return weight * rules.routed_scaling;
}

}  // namespace megamoe::protocol
