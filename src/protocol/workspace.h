// The symmetric workspace: every region once, in order. Its size is what has been taken; what `megamoe plan` prints is
// this list.
#pragma once

#include "megamoe/shape.h"
#include "protocol/block_cut.h"
#include "protocol/error_record.h"
#include "protocol/refusal.h"

namespace megamoe::protocol {

/// One slot of the source's list: which (token, slot), and its router weight. Sorted by expert, then token.
struct SlotEntry {
  uint32_t token_slot;  ///< token * top_k + slot.
  float weight;
};

/// The run of a source's slot list that belongs to one expert of the destination.
struct SlotRange {
  uint32_t num_rows;
  uint32_t first;  ///< Index into the source's slot list.
};

/// Where a pool row came from and where its result goes.
struct RowMeta {
  uint16_t source_rank;  ///< Gets the result.
  uint16_t holder_rank;  ///< The bytes were pulled from here: the source itself inside one NVLink domain, a forwarder
                         ///< across nodes.
  uint32_t token_slot;
  float weight;
  uint32_t reserved = 0;
};
static_assert(sizeof(RowMeta) == 16);

/// Sizes that decide the workspace. Equal on all ranks.
struct WorkspaceSpec {
  MoeShape shape;
  uint32_t num_ranks = 1;
  uint32_t max_tokens = 0;         ///< Capacity per rank, in tokens.
  uint32_t block_m = 64;           ///< Rows of a pool block.
  uint32_t token_ring_blocks = 0;  ///< Slots of the received-token ring.
  uint32_t act_ring_blocks = 0;    ///< Slots of the activation ring between the two GEMMs.
  /// The last so many of each rank's local experts are its shared ones, the last so many slots of each token are
  /// theirs. `shape` counts both in.
  uint32_t shared_experts = 0;
  uint32_t extra_m = 0;  ///< Further rows that an expert's last block may hold.

  MEGAMOE_HD constexpr BlockCut cut() const { return {block_m, extra_m}; }
  MEGAMOE_HD constexpr uint32_t room_m() const { return cut().room_m(); }
  MEGAMOE_HD constexpr uint32_t routed_local_experts() const { return local_experts() - shared_experts; }
  MEGAMOE_HD constexpr uint32_t routed_slots() const { return shape.top_k - shared_experts; }
  MEGAMOE_HD constexpr uint32_t local_experts() const { return shape.num_experts / num_ranks; }
  MEGAMOE_HD constexpr uint32_t hidden_groups() const { return shape.hidden / kScaleGroup; }
  MEGAMOE_HD constexpr uint32_t intermediate_groups() const { return core::ceil_div(shape.intermediate, kScaleGroup); }
  /// Rows that one rank can receive in one call: every slot of every token of every rank (duplicates count).
  MEGAMOE_HD constexpr uint64_t max_rows() const { return uint64_t{num_ranks} * max_tokens * shape.top_k; }
  /// Blocks of one call: full ones, and a partial one for each expert.
  MEGAMOE_HD constexpr uint64_t max_blocks() const { return max_rows() / block_m + local_experts(); }
  MEGAMOE_HD constexpr uint32_t input_blocks() const { return core::ceil_div(max_tokens, kInputBlockTokens); }

  static constexpr uint32_t kInputBlockTokens = 16;  ///< Tokens that become pullable together.

  bool operator==(const WorkspaceSpec&) const = default;
};

/// A typed span at a byte offset from the workspace base.
template <class T>
struct Region {
  uint64_t offset = 0;  ///< Bytes.
  uint64_t count = 0;   ///< Elements.

  MEGAMOE_HD T* in(void* base) const { return reinterpret_cast<T*>(static_cast<char*>(base) + offset); }
  MEGAMOE_HD constexpr uint64_t bytes() const { return count * sizeof(T); }
};

/// Who touches a region besides its own rank.
enum class Reach : uint8_t { kLocal, kPeersWrite, kPeersRead };

/// The workspace of one rank; the same layout on every rank.
struct Workspace {
  // Signals between ranks.
  Region<uint64_t> abort_word;    // [1]
  Region<uint64_t> header;        // [2 banks][num_ranks sources]
  Region<SlotRange> slot_ranges;  // [2 banks][num_ranks sources][local_experts]
  Region<Refusal> refusal;        // [2 banks][num_ranks sources]
  Region<uint32_t> expert_done;   // [num_experts] epoch of the last call whose rows are all here
  Region<uint32_t> input_full;    // [input_blocks] epoch of the last call whose tokens are readable
  // Data between ranks.
  Region<SlotEntry> slot_list;    // [max_tokens * top_k] sorted by expert
  Region<uint8_t> input_codes;    // [max_tokens][hidden] e4m3
  Region<float> input_scales;     // [max_tokens][hidden / 128]
  Region<uint16_t> combine_rows;  // [top_k][max_tokens][hidden] bf16
  // Local to the rank.
  Region<uint32_t> epoch;               // [1] calls started
  Region<uint32_t> plan_ready;          // [1] epoch
  Region<uint32_t> bank_blocks;         // [2] blocks that the last call of a bank used
  Region<uint32_t> tickets;             // [2 banks][4]: tile, input, combine, unused
  Region<uint32_t> tokens_full;         // [2 banks][max_blocks]
  Region<uint32_t> acts_full;           // [2 banks][max_blocks]
  Region<uint32_t> acts_empty;          // [2 banks][max_blocks]
  Region<uint32_t> expert_blocks_done;  // [2 banks][local_experts]
  Region<uint32_t> expert_first_block;  // [local_experts + 1]
  Region<uint32_t> expert_num_rows;     // [local_experts]
  Region<uint32_t> source_first_row;    // [num_ranks sources][local_experts] first row of a source inside the expert
  Region<RowMeta> row_meta;             // [max_blocks * room_m]
  Region<uint8_t> pool_codes;           // [token_ring_blocks][room_m][hidden] e4m3
  Region<float> pool_scales;            // [token_ring_blocks][hidden / 128][room_m]
  Region<uint8_t> act_codes;            // [act_ring_blocks][room_m][intermediate] e4m3
  Region<float> act_scales;             // [act_ring_blocks][ceil(intermediate / 128)][room_m]
  Region<uint32_t> error_claim;         // [1] waiters that gave up; the first one writes the record
  Region<ErrorRecord> error_record;     // [1] published by the abort word
  uint64_t bytes = 0;                   ///< Total, a multiple of kAlignBytes.

  static constexpr uint64_t kAlignBytes = 1024;  ///< Of the large regions: a TMA swizzle atom.

  /// Calls visit(name, member, count, align_bytes, reach) for every region, in layout order. The only list of regions
  /// there is.
  template <class Visit>
  static constexpr void for_each_region(const WorkspaceSpec& s, Visit&& visit);

  /// Lays out all regions. Precondition: fits(spec).
  static constexpr Workspace plan(const WorkspaceSpec& spec);
  /// False where a size does not fit 64 bits or an index does not fit 32.
  static constexpr bool fits(const WorkspaceSpec& spec);
};

template <class Visit>
constexpr void Workspace::for_each_region(const WorkspaceSpec& s, Visit&& visit) {
  using W = Workspace;
  const uint64_t ranks = s.num_ranks, local = s.local_experts(), blocks = s.max_blocks(), tokens = s.max_tokens;
  const uint64_t hidden = s.shape.hidden, top_k = s.shape.top_k;
  visit("abort_word", &W::abort_word, uint64_t{1}, 128, Reach::kPeersWrite);
  visit("header", &W::header, 2 * ranks, 128, Reach::kPeersWrite);
  visit("slot_ranges", &W::slot_ranges, 2 * ranks * local, 128, Reach::kPeersWrite);
  visit("refusal", &W::refusal, 2 * ranks, 128, Reach::kPeersWrite);
  visit("expert_done", &W::expert_done, uint64_t{s.shape.num_experts}, 128, Reach::kPeersWrite);
  visit("input_full", &W::input_full, uint64_t{s.input_blocks()}, 128, Reach::kPeersRead);
  visit("slot_list", &W::slot_list, tokens * top_k, 128, Reach::kPeersRead);
  visit("input_codes", &W::input_codes, tokens * hidden, kAlignBytes, Reach::kPeersRead);
  visit("input_scales", &W::input_scales, tokens * s.hidden_groups(), 128, Reach::kPeersRead);
  visit("combine_rows", &W::combine_rows, top_k * tokens * hidden, kAlignBytes, Reach::kPeersWrite);
  visit("epoch", &W::epoch, uint64_t{1}, 128, Reach::kLocal);
  visit("plan_ready", &W::plan_ready, uint64_t{1}, 128, Reach::kLocal);
  visit("bank_blocks", &W::bank_blocks, uint64_t{2}, 128, Reach::kLocal);
  visit("tickets", &W::tickets, uint64_t{8}, 128, Reach::kLocal);
  visit("tokens_full", &W::tokens_full, 2 * blocks, 128, Reach::kLocal);
  visit("acts_full", &W::acts_full, 2 * blocks, 128, Reach::kLocal);
  visit("acts_empty", &W::acts_empty, 2 * blocks, 128, Reach::kLocal);
  visit("expert_blocks_done", &W::expert_blocks_done, 2 * local, 128, Reach::kLocal);
  visit("expert_first_block", &W::expert_first_block, local + 1, 128, Reach::kLocal);
  visit("expert_num_rows", &W::expert_num_rows, local, 128, Reach::kLocal);
  visit("source_first_row", &W::source_first_row, ranks * local, 128, Reach::kLocal);
  visit("row_meta", &W::row_meta, blocks * s.room_m(), 128, Reach::kLocal);
  visit("pool_codes", &W::pool_codes, uint64_t{s.token_ring_blocks} * s.room_m() * hidden, kAlignBytes, Reach::kLocal);
  visit("pool_scales", &W::pool_scales, uint64_t{s.token_ring_blocks} * s.hidden_groups() * s.room_m(), 128,
        Reach::kLocal);
  visit("act_codes", &W::act_codes, uint64_t{s.act_ring_blocks} * s.room_m() * s.shape.intermediate, kAlignBytes,
        Reach::kLocal);
  visit("act_scales", &W::act_scales, uint64_t{s.act_ring_blocks} * s.intermediate_groups() * s.room_m(), 128,
        Reach::kLocal);
  visit("error_claim", &W::error_claim, uint64_t{1}, 128, Reach::kLocal);
  visit("error_record", &W::error_record, uint64_t{1}, 128, Reach::kPeersRead);
}

constexpr Workspace Workspace::plan(const WorkspaceSpec& spec) {
  Workspace w{};
  uint64_t cursor = 0;
  for_each_region(spec, [&](const char*, auto member, uint64_t count, uint64_t align_bytes, Reach) {
    cursor = core::align_up(cursor, align_bytes);
    (w.*member).offset = cursor;
    (w.*member).count = count;
    cursor += (w.*member).bytes();
  });
  w.bytes = core::align_up(cursor, kAlignBytes);
  return w;
}

constexpr bool Workspace::fits(const WorkspaceSpec& s) {
  uint64_t rows = 0, combine = 0, pool = 0, acts = 0;
  const bool ok = core::checked_mul(uint64_t{s.num_ranks} * s.max_tokens, s.shape.top_k, rows) &&
                  core::checked_mul(uint64_t{s.max_tokens} * s.shape.top_k, uint64_t{2} * s.shape.hidden, combine) &&
                  core::checked_mul(uint64_t{s.token_ring_blocks} * s.room_m(), s.shape.hidden, pool) &&
                  core::checked_mul(uint64_t{s.act_ring_blocks} * s.room_m(), s.shape.intermediate, acts);
  constexpr uint64_t kLimit = uint64_t{1} << 60;
  constexpr uint64_t kIndexLimit = uint64_t{1} << 32;
  return ok && combine < kLimit && pool < kLimit && acts < kLimit && rows < kIndexLimit &&
         s.max_blocks() * s.room_m() < kIndexLimit;
}

static_assert(Workspace::plan({{7168, 2048, 256, 8}, 8, 4096, 128, 64, 64}).input_codes.offset % 1024 == 0);

}  // namespace megamoe::protocol
