// What the host hands to the kernel: the rank's view, this call's tensors, the tensor maps. One struct, by value.
#pragma once

#include <cuda.h>

#include "protocol/events.h"
#include "protocol/rank_view.h"
#include "protocol/slot_rules.h"

namespace megamoe::sm90 {

/// How tokens enter the call.
enum class TokenSource : uint32_t {
  kQuantizeBf16,  ///< BF16 rows of the caller; quantised into the workspace inside the kernel.
  kCopyE4m3,      ///< E4M3 rows of the caller; copied into the workspace inside the kernel.
  kReadInPlace,   ///< E4M3 rows where they are: the workspace's own views, or (one rank) any memory of the caller.
};

/// The tensors of one call. Strides in elements.
struct CallTensors {
  const void* hidden = nullptr;  // [num_tokens][hidden] bf16 or e4m3
  uint64_t hidden_row_stride = 0;
  const void* scales = nullptr;  // [num_tokens][hidden / 128], FP32 or one exponent byte each
  uint64_t scale_row_stride = 0;
  uint64_t scale_group_stride = 0;
  const void* topk_ids = nullptr;  // [num_tokens][top_k] int32 or int64
  uint64_t id_token_stride = 0;
  uint64_t id_slot_stride = 0;
  const float* topk_weights = nullptr;  // [num_tokens][top_k]
  uint64_t weight_token_stride = 0;
  uint64_t weight_slot_stride = 0;
  uint16_t* output = nullptr;  // [num_tokens][hidden] bf16
  uint64_t output_row_stride = 0;
  uint32_t num_tokens = 0;
  TokenSource source = TokenSource::kQuantizeBf16;
  bool scales_are_ue8m0 = false;
  bool ids_are_64_bit = false;
  // What of SlotRules a call without extras needs, close to what it reads anyway.
  bool is_plain = true;         ///< Ids and weights of the caller are taken as they are, and all ranks are present.
  uint32_t num_ids = 0;         ///< SlotRules::num_ids.
  void* recv_counts = nullptr;  // [routed local experts] int32 or int64, added to; null: none
  bool recv_counts_are_64_bit = false;
};

/// Scales of experts whose tensors lie together, as the checkpoint has them.
struct ExpertScales {
  const float* w13 = nullptr;  // [experts][2][ceil(I / 128)][H / 128]
  const float* w2 = nullptr;   // [experts][H / 128][ceil(I / 128)]
};

/// The rank's weights. Local experts from `first_shared` on are the shared ones.
struct WeightScales {
  ExpertScales routed;
  ExpertScales shared;
  uint32_t first_shared = 0;
  bool up_is_first = false;  ///< The first half of w13 is the up half.
};

/// Boxes are rows of 128 bytes with 128-byte swizzle.
struct TensorMaps {
  CUtensorMap w13;         // (k, 8 rows, gate/up, I / 8, expert) -> 256 rows: 8 gate, 8 up, 8 gate, ...
  CUtensorMap w2;          // (k, H, expert) -> 256 rows
  CUtensorMap shared_w13;  // of the shared experts; all zero where there are none
  CUtensorMap shared_w2;
  CUtensorMap pool;        // (k, ring row) -> block_m rows
  CUtensorMap pool_half;   // the same, 64 rows: for blocks with few
  CUtensorMap pool_extra;  // the same, extra_m rows; unused where that is 0
  CUtensorMap acts;        // (k, ring row) -> block_m rows
  CUtensorMap acts_half;   // 64 rows
  CUtensorMap acts_extra;  // extra_m rows
  CUtensorMap acts_store;  // (column, ring row) <- 16 rows
};

/// What the host reads; pinned, written by the last warp of a call's grid. Several calls may be in flight: a failure
/// stays until the host has told of it, whatever later calls do.
struct CallReport {
  uint64_t abort_word = 0;       ///< Not 0: a call was cut short. Stays until reset.
  protocol::ErrorRecord record;  ///< Of the rank that gave up; written before abort_word.
  uint32_t epoch = 0;            ///< The call that ended last.
  uint32_t num_refused = 0;      ///< Calls whose refusal the GPU found, so far; written after what follows.
  uint32_t num_told = 0;         ///< So many of them the host has told of; written by the host alone.
  uint32_t refused_epoch = 0;    ///< Of the first of which it has not, like the following.
  uint32_t refused_by = 0;       ///< A rank; this one where it is among several.
  protocol::Refusal refusal;
};

/// Of one call: where the CTAs that sort slots meet. Two banks; the idle one is zeroed by clean.
struct SortState {
  uint32_t claimed[kMaxExperts];  ///< Slots of each expert that CTAs have claimed places for.
  uint32_t ctas_counted;
  uint32_t ctas_placed;
  uint32_t first_bad;  ///< As in RouteScratch.
};

/// What the grid knows beyond the protocol.
struct GridState {
  uint32_t ctas_left;  ///< Counts CTAs that have finished; the last one sets it back.
  uint32_t reserved;
  protocol::RankSet refused;  ///< Of the current call.
  SortState sort[2];
};

/// One line of the in-kernel trace. Rings: [num_ctas][num_warps][capacity], the newest `capacity` lines of each warp.
struct TraceRecord {
  uint64_t time_ns = 0;  ///< globaltimer; 0: never written.
  uint32_t value = 0;    ///< Tile block, row or token.
  protocol::Event event = protocol::Event::kCount;
  uint8_t is_end = 0;
  uint16_t sm = 0;
};
static_assert(sizeof(TraceRecord) == 16);

struct TraceArgs {
  TraceRecord* records = nullptr;
  uint32_t capacity = 0;  ///< Per warp.
};

struct KernelArgs {
  TensorMaps maps;
  protocol::RankView view;
  CallTensors tensors;
  protocol::SlotRules rules;
  WeightScales weight_scales;
  protocol::Refusal refusal;  ///< Found by the host; kind kNone where there is none.
  GridState* grid_state = nullptr;
  CallReport* report = nullptr;
  TraceArgs trace;  ///< Used by the trace variants only.
  uint64_t timeout_ns = 0;
  float clamp = 0;
  bool gathers_rows = false;  ///< This call's tokens are read where they lie; see protocol::KernelSpec.
};
static_assert(sizeof(KernelArgs) <= 4096);

}  // namespace megamoe::sm90
