// The compiled kernels: one named type per configuration, with the reason for its numbers.
#pragma once

#include "protocol/kernel_spec.h"

namespace megamoe::sm90 {

/// The default: 128x256 tiles, each math warpgroup 64 rows as two waves of 128 columns, so that exact promotion keeps
/// 64 partial and 128 final sums in 208 registers, and a first-GEMM tile covers whole scale groups. Four stages: rows
/// of the second GEMM leave from the registers, since staging for them would cost a stage (2 to 4% up to 1,024 tokens;
/// 1% in its favour at 8,192). An expert's last tile takes up to 16 further rows while its weights lie in shared
/// memory: a nearly empty block of their own would cost 0.8 of a full one, they cost 0.35.
struct M128 {
  static constexpr bool kTrace = false;
  static constexpr bool kChaos = false;
  static constexpr protocol::KernelSpec kSpec{.name = "m128",
                                              .plan = protocol::kPlan384,
                                              .block_m = 128,
                                              .extra_m = protocol::KernelSpec::kExtraRows,
                                              .tile_n = 256,
                                              .tile_k = 128,
                                              .num_stages = 4,
                                              .num_tile_slots = 4,
                                              .pull_buffer_bytes = 1152};
};

/// Small batches: 64x256 tiles, the math warpgroups side by side along the columns. Its stage is smaller by half of the
/// token rows, which buys a fifth stage (4% at one token of the pro slice, where few SMs have work). A rank's own rows
/// are gathered from where they lie: the first tile starts 8 us earlier than after a copy to the pool.
struct M64 {
  static constexpr bool kTrace = false;
  static constexpr bool kChaos = false;
  static constexpr protocol::KernelSpec kSpec{.name = "m64",
                                              .plan = protocol::kPlan384,
                                              .block_m = 64,
                                              .tile_n = 256,
                                              .tile_k = 128,
                                              .num_stages = 5,
                                              .num_tile_slots = 4,
                                              .pull_buffer_bytes = 1152,
                                              .gathers_rows = true};
};

/// The layout of the first public SM90 port: a warpgroup each for dispatch and load, four math warpgroups of 64x64.
/// Compiled and checked, not tuned.
struct M64Wide {
  static constexpr bool kTrace = false;
  static constexpr bool kChaos = false;
  static constexpr protocol::KernelSpec kSpec{.name = "m64_768",
                                              .plan = protocol::kPlan768,
                                              .block_m = 64,
                                              .tile_n = 256,
                                              .tile_k = 128,
                                              .num_stages = 4,
                                              .num_tile_slots = 4,
                                              .pull_buffer_bytes = 1792};
};

/// One math warpgroup with all the registers, operands swapped: weights are the multiply's 64 rows and tokens its
/// columns, 8, 16, 32 or 64 of them as a tile needs, where the other kernels always multiply 64 rows of tokens.
/// Compiled and checked, not tuned.
struct M64Single {
  static constexpr bool kTrace = false;
  static constexpr bool kChaos = false;
  static constexpr protocol::KernelSpec kSpec{.name = "m64_256",
                                              .plan = protocol::kPlan256,
                                              .block_m = 64,
                                              .tile_n = 256,
                                              .tile_k = 128,
                                              .num_stages = 4,
                                              .num_tile_slots = 4,
                                              .pull_buffer_bytes = 3072,
                                              .swaps_operands = true};
};

/// The default with the in-kernel trace.
struct M128Trace {
  static constexpr bool kTrace = true;
  static constexpr bool kChaos = false;
  static constexpr protocol::KernelSpec kSpec = [] {
    protocol::KernelSpec spec = M128::kSpec;
    spec.name = "m128_trace";
    return spec;
  }();
};

/// The default with pauses of random length at every release and acquire: what is right only by timing shows.
struct M128Chaos {
  static constexpr bool kTrace = false;
  static constexpr bool kChaos = true;
  static constexpr protocol::KernelSpec kSpec = [] {
    protocol::KernelSpec spec = M128::kSpec;
    spec.name = "m128_chaos";
    return spec;
  }();
};

static_assert(M128::kSpec.valid() && M64::kSpec.valid() && M64Wide::kSpec.valid() && M64Single::kSpec.valid());
static_assert(M128::kSpec.accumulator_registers() == 192);

}  // namespace megamoe::sm90
