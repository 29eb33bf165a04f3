// The warp plans: which role each warp of a kernel has, and how many registers each warpgroup keeps. One table.
#pragma once

#include "protocol/signal.h"

namespace megamoe::protocol {

/// Four consecutive warps. A register count belongs to all of them: hardware reallocates registers per warpgroup.
struct WarpgroupPlan {
  static constexpr uint32_t kNumWarps = 4;
  static constexpr uint32_t kNumThreads = 128;

  Role roles[kNumWarps] = {Role::kMath, Role::kMath, Role::kMath, Role::kMath};
  uint32_t registers = 0;  ///< Per thread, a multiple of 8.
};

/// All warps of one kernel, in order.
struct WarpPlan {
  static constexpr uint32_t kMaxWarpgroups = 6;

  const char* name = "";  ///< "384: 88/208", as `megamoe plan` prints it.
  uint32_t num_warpgroups = 0;
  WarpgroupPlan warpgroups[kMaxWarpgroups];

  MEGAMOE_HD constexpr uint32_t num_threads() const { return num_warpgroups * WarpgroupPlan::kNumThreads; }
  MEGAMOE_HD constexpr uint32_t num_warps() const { return num_warpgroups * WarpgroupPlan::kNumWarps; }
  MEGAMOE_HD constexpr Role role(uint32_t warp) const {
    return warpgroups[warp / WarpgroupPlan::kNumWarps].roles[warp % WarpgroupPlan::kNumWarps];
  }
  MEGAMOE_HD constexpr uint32_t registers(uint32_t warp) const {
    return warpgroups[warp / WarpgroupPlan::kNumWarps].registers;
  }
  MEGAMOE_HD constexpr uint32_t num_warps(Role of) const {
    uint32_t count = 0;
    for (uint32_t warp = 0; warp < num_warps(); ++warp) count += role(warp) == of ? 1 : 0;
    return count;
  }
  /// The first warp with this role; num_warps() where there is none.
  MEGAMOE_HD constexpr uint32_t first_warp(Role of) const {
    uint32_t warp = 0;
    while (warp < num_warps() && role(warp) != of) ++warp;
    return warp;
  }
  MEGAMOE_HD constexpr uint32_t num_math_warpgroups() const {
    return num_warps(Role::kMath) / WarpgroupPlan::kNumWarps;
  }

  /// Registers a thread has when the kernel starts: the register file shared by all threads, in steps of 8.
  MEGAMOE_HD constexpr uint32_t entry_registers() const { return kRegisterFile / num_threads() / 8 * 8; }
  /// Registers that the warpgroups ask for together.
  MEGAMOE_HD constexpr uint32_t registers_asked() const {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < num_warpgroups; ++i) sum += warpgroups[i].registers * WarpgroupPlan::kNumThreads;
    return sum;
  }
  /// Whether hardware can grant the counts. Reallocation moves registers inside what the block was given at entry, not
  /// inside the whole file: 768 threads enter with 80, so 32/24/112 asks for 64,512 of 61,440 and its last warpgroup
  /// waits for ever.
  MEGAMOE_HD constexpr bool can_be_granted() const {
    if (num_warpgroups == 0 || num_warpgroups > kMaxWarpgroups) return false;
    for (uint32_t i = 0; i < num_warpgroups; ++i) {
      const uint32_t count = warpgroups[i].registers;
      if (count % 8 != 0 || count < 24 || count > 256) return false;
    }
    return registers_asked() <= num_threads() * entry_registers();
  }

  static constexpr uint32_t kRegisterFile = 65536;  ///< 32-bit registers of one SM.
};

/// A warpgroup of math warps.
constexpr WarpgroupPlan math_warpgroup(uint32_t registers) {
  return {{Role::kMath, Role::kMath, Role::kMath, Role::kMath}, registers};
}
/// Two load warps (weights, tokens), a store warp and a dispatch warp in one warpgroup.
constexpr WarpgroupPlan service_warpgroup(uint32_t registers) {
  return {{Role::kLoad, Role::kLoad, Role::kStore, Role::kDispatch}, registers};
}
constexpr WarpgroupPlan load_warpgroup(uint32_t registers) {
  return {{Role::kLoad, Role::kLoad, Role::kIdle, Role::kIdle}, registers};
}
constexpr WarpgroupPlan dispatch_warpgroup(uint32_t registers) {
  return {{Role::kDispatch, Role::kDispatch, Role::kDispatch, Role::kStore}, registers};
}

/// 384 threads, the default: dispatch, load and store share a warpgroup, two math warpgroups. The k loop with 64
/// partial and 128 final sums, in its forms for whole and for half tiles, fits 208 registers without a spill and with
/// partial and final sums in different register banks (at 216 they meet in one, which costs 7%); the rest lets the
/// service warps do without a spill too (at 56 the dispatch warp spills 120 bytes).
inline constexpr WarpPlan kPlan384{"384: 88/208", 3, {service_warpgroup(88), math_warpgroup(208), math_warpgroup(208)}};
/// The same threads with the most for the math warps.
inline constexpr WarpPlan kPlan384Wide{
    "384: 56/224", 3, {service_warpgroup(56), math_warpgroup(224), math_warpgroup(224)}};
/// 768 threads: a warpgroup each for dispatch (with store) and load, four math warpgroups of 64x64.
inline constexpr WarpPlan kPlan768{"768: 32/24/104",
                                   6,
                                   {dispatch_warpgroup(32), load_warpgroup(24), math_warpgroup(104),
                                    math_warpgroup(104), math_warpgroup(104), math_warpgroup(104)}};
/// 256 threads: one math warpgroup with the most registers there are; it holds the sums of a whole tile of 64 tokens x
/// 256 weight rows.
inline constexpr WarpPlan kPlan256{"256: 96/256", 2, {service_warpgroup(96), math_warpgroup(256)}};

static_assert(kPlan384.can_be_granted() && kPlan384.registers_asked() == 64512);
static_assert(kPlan384Wide.can_be_granted() && kPlan384Wide.registers_asked() == 64512);
static_assert(kPlan768.can_be_granted() && kPlan768.entry_registers() == 80);
static_assert(kPlan256.can_be_granted());

}  // namespace megamoe::protocol
