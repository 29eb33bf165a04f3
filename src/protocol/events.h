// One vocabulary for traces, the simulator and documents: what a role was doing.
#pragma once

#include "core/portable.h"

namespace megamoe::protocol {

enum class Event : uint8_t {
  kSortSlots,
  kWaitHeaders,
  kPullRow,
  kFillInput,
  kWaitPlan,
  kWaitTokens,
  kL1Tile,
  kWaitActs,
  kL2Tile,
  kWaitExperts,
  kCombineToken,
  kStageTile,
  kStoreTile,
  kCount
};

constexpr const char* name(Event event) {
  constexpr const char* kNames[] = {"sort_slots",    "wait_headers", "pull_row",  "fill_input", "wait_plan",
                                    "wait_tokens",   "l1_tile",      "wait_acts", "l2_tile",    "wait_experts",
                                    "combine_token", "stage_tile",   "store_tile"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<uint32_t>(Event::kCount));
  return kNames[static_cast<uint32_t>(event)];
}

}  // namespace megamoe::protocol
