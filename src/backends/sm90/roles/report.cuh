// The end of a call: what the host must learn of it, into pinned memory that outlives the next calls.
#pragma once

#include "backends/sm90/machine.cuh"

namespace megamoe::sm90 {

/// Between the host, this rank and its peers; both are multiples of 8 bytes.
template <class T>
__device__ __forceinline__ void copy_record(T& to, const T& from) {
  auto* words = reinterpret_cast<volatile uint64_t*>(&to);
  for (uint32_t i = 0; i < sizeof(T) / 8; ++i) words[i] = reinterpret_cast<const volatile uint64_t*>(&from)[i];
}

/// Keeps the first refusal that the host has not told of. The host finds its own sentences without this.
/// @param first, rest  the set of ranks that refuse the call: ranks 0 to 63, and the others
template <class Spec>
__device__ __forceinline__ void report_refusal(Context<Spec>& c, CallReport& report, uint64_t first, uint64_t rest) {
  const auto* told = static_cast<const volatile uint32_t*>(&report.num_told);
  auto* count = static_cast<volatile uint32_t*>(&report.num_refused);
  const uint32_t num_refused = *count, own = c.view().rank;
  if (num_refused == *told) {
    const bool own_too = ((own < 64 ? first : rest) >> own % 64 & 1) != 0;
    const uint32_t lowest =
        first != 0 ? __ffsll(static_cast<int64_t>(first)) - 1 : __ffsll(static_cast<int64_t>(rest)) + 63;
    const uint32_t source = own_too ? own : lowest;
    report.refused_epoch = c.epoch();
    report.refused_by = source;
    copy_record(report.refusal, c.own_bank(c.layout().refusal)[source]);
    __threadfence_system();
  }
  *count = num_refused + 1;
}

/// By one thread, when the call is over.
template <class Spec>
__device__ __forceinline__ void report_call(Context<Spec>& c) {
  CallReport& report = *c.args.report;
  const uint64_t* refused = c.args.grid_state->refused.words;
  const uint64_t first = __ldcg(refused), rest = __ldcg(refused + 1);
  // Acquire: pairs with report_failure of any rank.
  const uint64_t abort_word = ptx::load_acquire_sys(c.own(c.layout().abort_word));
  if (abort_word != 0) {
    copy_record(report.record, *c.peer(c.layout().error_record, protocol::abort_rank(abort_word)));
    __threadfence_system();
    report.abort_word = abort_word;
  } else if ((first | rest) != 0 && c.args.refusal.kind == protocol::RefusalKind::kNone) {
    report_refusal(c, report, first, rest);
  }
  report.epoch = c.epoch();
}

}  // namespace megamoe::sm90
