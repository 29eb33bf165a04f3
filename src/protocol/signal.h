// Every counter and flag of the protocol, by name. One table says who releases it, who acquires it, and at which scope.
#pragma once

#include "core/portable.h"

namespace megamoe::protocol {

/// How far a release must be seen: by the SMs (threads) of one rank, or by every rank.
enum class Scope : uint8_t { kRank, kSystem };

/// The order of this list is the order of blame: a wait for a later signal has a slightly later deadline
/// (kBlameStepNs), so that where several waits hang for one cause, the one nearest to the cause gives up first and is
/// reported.
enum class Signal : uint8_t {
  kHeader,      ///< Source published its counts (or its refusal) for this call.
  kInputFull,   ///< Tokens of an input block are quantised and may be pulled.
  kExpertDone,  ///< All rows of an expert for this source rank lie in its combine buffer.
  kPlanReady,   ///< The pool plan of this call is readable (or the call is refused).
  kTokensFull,  ///< Rows that have arrived in a pool block.
  kActsFull,    ///< First-GEMM tiles of a block that are finished; also frees the block's slot of the token ring.
  kActsEmpty,   ///< Second-GEMM tiles of a block that are finished; frees the block's slot of the activation ring.
  kExpertBlocksDone,  ///< Blocks of an expert whose second GEMM is finished.
  kTileTicket,        ///< Next tile of the schedule to be taken by a worker.
  kInputTicket,       ///< Next input block to be quantised.
  kCombineTicket,     ///< Next group of tokens to be combined.
  kErrorClaim,        ///< Waiters of this rank that gave up; only the first one writes the error record.
  kAbort,             ///< A rank gave up; every wait of every rank leaves.
  kCount
};

inline constexpr uint32_t kNumSignals = static_cast<uint32_t>(Signal::kCount);

struct SignalInfo {
  const char* name;
  Scope scope;
  const char* released_by;  ///< Role, and the place: "dispatch: publish_header".
  const char* acquired_by;
  const char* reset;  ///< What makes the next call start clean.
};

/// docs/protocol.md prints this table; a test compares the two.
inline constexpr SignalInfo kSignals[kNumSignals] = {
    {"header", Scope::kSystem, "dispatch: publish_header", "dispatch: wait_headers", "epoch-valued, two banks"},
    {"input_full", Scope::kSystem, "math: quantize_input", "dispatch: pull_rows", "epoch-valued"},
    {"expert_done", Scope::kSystem, "math: finish_block", "combine: combine_tokens", "epoch-valued"},
    {"plan_ready", Scope::kRank, "dispatch: publish_plan", "math: wait_plan", "epoch-valued"},
    {"tokens_full", Scope::kRank, "dispatch: pull_rows", "math: wait_tokens", "idle bank zeroed by clean"},
    {"acts_full", Scope::kRank, "math: finish_l1_tile", "math: wait_acts; dispatch: pull_rows",
     "idle bank zeroed by clean"},
    {"acts_empty", Scope::kRank, "math: finish_block", "math: wait_acts_empty", "idle bank zeroed by clean"},
    {"expert_blocks_done", Scope::kRank, "math: finish_block", "math: finish_block", "idle bank zeroed by clean"},
    {"tile_ticket", Scope::kRank, "math: take_tile", "math: take_tile", "idle bank zeroed by clean"},
    {"input_ticket", Scope::kRank, "math: quantize_input", "math: quantize_input", "idle bank zeroed by clean"},
    {"combine_ticket", Scope::kRank, "combine: take_tokens", "combine: take_tokens", "idle bank zeroed by clean"},
    {"error_claim", Scope::kRank, "any role: give_up", "any role: give_up", "zeroed by reset"},
    {"abort", Scope::kSystem, "any role: give_up", "every wait", "zeroed by reset"},
};

constexpr const SignalInfo& info(Signal signal) { return kSignals[static_cast<uint32_t>(signal)]; }
constexpr const char* name(Signal signal) { return info(signal).name; }

inline constexpr uint64_t kBlameStepNs =
    100'000'000;  ///< Times 12 signals: every wait ends within 1.3 s of its deadline.

/// Who waits, in error records, traces and documents.
enum class Role : uint8_t { kDispatch, kLoad, kMath, kCombine, kClean, kStore, kIdle, kCount };

constexpr const char* name(Role role) {
  constexpr const char* kNames[] = {"dispatch", "load", "math", "combine", "clean", "store", "idle"};
  return kNames[static_cast<uint32_t>(role)];
}

}  // namespace megamoe::protocol
