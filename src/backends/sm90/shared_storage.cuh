// Shared memory of one CTA. No member's size depends on the hidden size or on the number of experts of a model.
#pragma once

#include "megamoe/shape.h"
#include "protocol/error_record.h"
#include "protocol/kernel_spec.h"

namespace megamoe::sm90 {

/// A tile as the load role announces it to the others.
struct alignas(16) TileNote {
  uint16_t kind;  ///< NoteKind.
  uint16_t local_expert;
  uint32_t block;
  uint32_t n;
  uint32_t num_rows;
};
enum NoteKind : uint16_t { kNoteL1, kNoteL2, kNoteEnd };

/// What a dispatch warp knows about 32 consecutive (expert, source) cells; here because registers are short.
struct PullCells {
  uint32_t begin[32];  ///< First row, counted from the first cell's.
  uint32_t end[32];
  uint32_t list_first[32];     ///< In the source's slot list.
  uint32_t row_in_expert[32];  ///< Of the cell's first row.
  uint32_t expert_block[32];   ///< First pool block of the expert.
  uint32_t expert_blocks[32];  ///< Blocks of the expert.
};

/// Where the piece of a row in a pull buffer goes.
struct PieceNote {
  uint8_t* dst;
  uint64_t bytes;
};

/// Left by the first waiter of the CTA that gives up; the CTA's last warp turns it into the rank's error record.
struct Failure {
  uint32_t claimed;    ///< 0, or the first waiter's mark.
  uint32_t raised;     ///< Every wait of the CTA looks at it.
  uint32_t timed_out;  ///< 0: only followed somebody else's abort.
  protocol::Role role;
  protocol::Signal signal;
  uint64_t index;
  uint64_t expected;
  uint64_t seen;
  uint64_t waited_ns;
  unsigned long long missing[2];
};

/// Scratch of the routing step; lies over the operand stages, which nobody uses yet.
struct RouteScratch {
  uint32_t counts[kMaxExperts];
  uint32_t first[kMaxExperts];
  uint32_t next[kMaxExperts];
  uint32_t first_bad;      ///< 0, or UINT32_MAX minus the lowest slot whose id is no expert.
  uint32_t first_bad_map;  ///< The same of the expert map's entries; known to the first CTA.
  uint32_t refused_words[4];
};

template <class Spec>
struct SharedStorage {
  static constexpr protocol::KernelSpec kSpec = Spec::kSpec;
  static constexpr uint32_t kStages = kSpec.num_stages;
  static constexpr uint32_t kMathWarps = kSpec.plan.num_warps(protocol::Role::kMath);
  static constexpr uint32_t kPullWarps = kSpec.plan.num_warps(protocol::Role::kDispatch);
  static constexpr uint32_t kStoreRows = 16;  ///< Rows of one math warp.
  /// Of one math warp: codes of the first GEMM, which a bulk copy takes away, or 64 BF16 columns of the second on their
  /// way from the layout of sums to that of rows. 128 bytes a row, swizzled.
  static constexpr uint32_t kStagingBytes = kStoreRows * 128;

  /// Operands of one k-block: rows of 128 bytes with 128-byte swizzle.
  struct Stage {
    uint8_t tokens[kSpec.room_m() * 128];
    uint8_t weights[kSpec.tile_n * 128];
  };

  alignas(1024) Stage stages[kStages];
  alignas(1024) uint8_t staging[kMathWarps][kStagingBytes];
  alignas(128) uint8_t pull[kPullWarps][kSpec.num_pull_buffers][kSpec.pull_buffer_bytes];
  alignas(128) float token_scales[kStages][kSpec.room_m()];
  alignas(16) float staged_scales[kSpec.room_m()];  ///< Of the first-GEMM rows in staging.
  uint2 row_notes[kMathWarps][kStoreRows];          ///< Of each math warp's rows; see RowNotes.
  /// Of the even and odd groups of 8 columns, in the tile's first and second 128 columns: gate and up twice, or one
  /// scale each.
  float4 weight_scales[kStages];
  TileNote notes[kSpec.num_tile_slots];
  uint32_t gathered_tokens[kSpec.gathers_rows ? kSpec.block_m : 1];  ///< The tokens of the tile's rows.
  /// Row maxima of warpgroups that share rows, or of warps where operands are swapped; two buffers.
  static constexpr bool kSharesRows = kSpec.warpgroups_n() > 1 || kSpec.splits_half_tiles() || kSpec.swaps_operands;
  static constexpr uint32_t kRowSharers =
      kSpec.swaps_operands ? kMathWarps : (kSpec.splits_half_tiles() ? 2 : kSpec.warpgroups_n());
  float amax[kSharesRows ? 2 : 1][kRowSharers][kSharesRows ? protocol::KernelSpec::kWarpgroupRows : 1];
  static_assert(kSpec.extra_m == 0 || sizeof(amax) == 2 * kMathWarps * protocol::KernelSpec::kExtraRows * 4);
  alignas(8) uint64_t stage_full[kStages];
  uint64_t stage_empty[kStages];
  uint64_t note_full[kSpec.num_tile_slots];
  uint64_t note_empty[kSpec.num_tile_slots];
  uint64_t pulled[kPullWarps][kSpec.num_pull_buffers];
  PieceNote pieces[kPullWarps][kSpec.num_pull_buffers];
  PullCells cells[kPullWarps];
  uint64_t amax_full;
  uint64_t dry_passes_done;  ///< By every math thread.
  uint64_t staged;           ///< The math warps have written the tile to staging.
  uint64_t staging_empty;    ///< The store warp's copies have read it.
  uint32_t warps_filled;     ///< Warps whose tokens of an input block are written.
  uint32_t warps_left;
  uint32_t trace_count[Spec::kTrace ? kSpec.plan.num_warps() : 1];
  uint32_t epoch;
  Failure failure;

  __device__ RouteScratch& route_scratch() { return *reinterpret_cast<RouteScratch*>(&stages[0]); }
};
static_assert(sizeof(RouteScratch) <= 16384);

}  // namespace megamoe::sm90
