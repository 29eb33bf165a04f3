// CpuRank's bodies; included by backend.cc and by tests that choose another machine.
#pragma once

#include <limits>

#include "backends/cpu/kernels/fp_state.h"
#include "backends/cpu/rank.h"
#include "backends/error_text.h"
#include "protocol/roles/clean.h"
#include "protocol/roles/combine.h"
#include "protocol/roles/input.h"
#include "protocol/roles/tiles.h"

namespace megamoe::cpu {

using protocol::WaitResult;

/// Adds the time until destruction to a sum.
template <class M>
class Stopwatch {
 public:
  Stopwatch(M& m, std::atomic<uint64_t>& sum) : m_(m), sum_(sum), start_ns_(m.now_ns()) {}
  ~Stopwatch() { sum_.fetch_add(m_.now_ns() - start_ns_, std::memory_order_relaxed); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  M& m_;
  std::atomic<uint64_t>& sum_;
  uint64_t start_ns_;
};

/// What run_tiles asks for, with the time of each stage.
template <class M>
struct TimedTiles {
  M& m;
  Compute& compute;
  const CallInputs& inputs;
  StageTimes& times;

  void l1_tile(const protocol::Tile& tile, uint32_t num_rows) {
    const Stopwatch<M> watch(m, times.l1_ns);
    compute.l1_tile(inputs, tile, num_rows);
  }
  void l2_tile(const protocol::Tile& tile, uint32_t num_rows) {
    const Stopwatch<M> watch(m, times.l2_ns);
    compute.l2_tile(inputs, tile, num_rows);
  }
};

/// Zeroes the idle bank. A machine of the tests may take this over, to show what leaving it out would do.
template <class M>
void clean(M& m, const protocol::RankView& view, const protocol::Call& call) {
  if constexpr (requires { m.clean_idle_bank(view, call); }) {
    m.clean_idle_bank(view, call);
  } else {
    protocol::clean_idle_bank(view, call);
  }
}

template <protocol::Machine M>
CpuRank<M>::CpuRank(const LayerConfig& config, const backends::BackendPlan& plan,
                    const std::shared_ptr<SymmetricMemory>& group, uint32_t num_workers)
    : config_(config),
      view_(backends::make_view(plan, *group)),
      group_(group),
      clamp_(config.swiglu_clamp.value_or(std::numeric_limits<float>::infinity())),
      timeout_ns_(config.timeout_ns),
      slot_ranges_(plan.workspace.shape.num_experts),
      workers_(num_workers) {
  for (uint32_t i = 0; i < num_workers + 1; ++i) compute_.push_back(std::make_unique<Compute>(view_));
}

template <protocol::Machine M>
Result<std::shared_ptr<const backends::WeightSet>> CpuRank<M>::prepare_weights(const ExpertWeights& weights) {
  auto table = std::make_shared<WeightTable>();
  table->bind(view_.spec.shape, view_.spec.routed_local_experts(), weights);
  return std::shared_ptr<const backends::WeightSet>(std::move(table));
}

template <protocol::Machine M>
int64_t CpuRank<M>::id_at(const ForwardArgs& args, uint32_t token, uint32_t slot) {
  const TensorView& ids = args.topk_ids;
  const int64_t offset = int64_t{token} * ids.strides[0] + int64_t{slot} * ids.strides[1];
  return ids.dtype == DType::kInt32 ? int64_t{static_cast<const int32_t*>(ids.data)[offset]}
                                    : static_cast<const int64_t*>(ids.data)[offset];
}

template <protocol::Machine M>
void CpuRank<M>::read_ids(const ForwardArgs& args) {
  const uint32_t top_k = view_.spec.shape.top_k;
  rules_ = backends::slot_rules(config_, view_, args);
  slot_experts_.resize(size_t{inputs_.num_tokens} * top_k);
  for (uint32_t token = 0; token < inputs_.num_tokens; ++token)
    for (uint32_t slot = 0; slot < top_k; ++slot)
      slot_experts_[size_t{token} * top_k + slot] =
          protocol::slot_expert(rules_, token, slot, [&](uint32_t t, uint32_t s) { return id_at(args, t, s); });
}

template <protocol::Machine M>
protocol::Refusal CpuRank<M>::check_map() const {
  protocol::Refusal refusal;
  for (uint32_t logical = 0; rules_.expert_map != nullptr && logical < rules_.num_ids; ++logical) {
    for (uint32_t copy = 0; copy < rules_.max_copies; ++copy) {
      const int32_t value = rules_.map_entry(logical, copy);
      if (rules_.is_map_value(value)) continue;
      refusal.kind = protocol::RefusalKind::kMapOutOfRange;
      refusal.token = logical;
      refusal.slot = copy;
      refusal.value = value;
      refusal.limit = rules_.num_physical;
      return refusal;
    }
  }
  return refusal;
}

template <protocol::Machine M>
protocol::SlotSort CpuRank<M>::sort_slots(const ForwardArgs& args, const Status& refusal) {
  if (!refusal.ok()) return {slot_ranges_.data(), backends::make_refusal(refusal)};
  const DefaultFpState fp_state;  // weights may be multiplied here
  protocol::SlotSort sort{slot_ranges_.data(), check_map()};
  if (sort.refusal.kind != protocol::RefusalKind::kNone) return sort;
  const uint32_t top_k = view_.spec.shape.top_k;
  const TensorView& weights = args.topk_weights;
  const auto caller_id = [&](uint32_t token, uint32_t slot) { return id_at(args, token, slot); };
  const auto caller_weight = [&](uint32_t token, uint32_t slot) {
    return static_cast<const float*>(weights.data)[int64_t{token} * weights.strides[0] + slot * weights.strides[1]];
  };
  sort.refusal = protocol::sort_slots(
      view_, inputs_.num_tokens,
      [&](uint32_t token, uint32_t slot) { return int64_t{slot_experts_[size_t{token} * top_k + slot]}; },
      [&](uint32_t token, uint32_t slot) {
        return protocol::slot_weight(rules_, token, slot, caller_id, caller_weight);
      },
      slot_ranges_.data());
  if (sort.refusal.kind == protocol::RefusalKind::kIdOutOfRange) {
    sort.refusal.value = id_at(args, sort.refusal.token, sort.refusal.slot);
    sort.refusal.limit = rules_.num_ids;
  }
  return sort;
}

template <protocol::Machine M>
void CpuRank<M>::count_received(const TensorView& counts) const {
  if (!counts.present()) return;
  const uint32_t* rows = view_.layout.expert_num_rows.in(view_.own());
  for (uint32_t expert = 0; expert < rules_.routed_local; ++expert) {
    if (counts.dtype == DType::kInt32) {
      static_cast<int32_t*>(counts.data)[expert] += static_cast<int32_t>(rows[expert]);
    } else {
      static_cast<int64_t*>(counts.data)[expert] += rows[expert];
    }
  }
}

template <protocol::Machine M>
WaitResult CpuRank<M>::pull(M& m, const protocol::Call& call) {
  const protocol::PoolPlan plan = view_.pool_plan();
  const protocol::Banks own(view_, call.bank());
  const uint32_t num_ranks = view_.spec.num_ranks, local = view_.spec.local_experts();
  std::vector<protocol::SourceCursor> cursors;
  cursors.reserve(num_ranks);
  for (uint32_t n = 0; n < num_ranks; ++n) {
    const uint64_t source = protocol::nth_source(view_.rank, n, num_ranks);
    cursors.emplace_back(plan, own.slot_ranges + source * local, plan.source_first_row + source * local);
  }
  return protocol::pull_rows(m, view_, call, cursors.data());
}

template <protocol::Machine M>
WaitResult CpuRank<M>::run_combine(M& m, const protocol::Call& call, uint32_t worker, Compute& compute) {
  const Stopwatch<M> watch(m, times_.combine_ns);
  const uint32_t top_k = view_.spec.shape.top_k;
  return protocol::combine_tokens(
      m, view_, call, worker, inputs_.num_tokens,
      [&](uint32_t token, uint32_t slot) { return int64_t{slot_experts_[size_t{token} * top_k + slot]}; },
      [&](uint32_t token) { compute.combine(inputs_, token); });
}

template <protocol::Machine M>
WaitResult CpuRank<M>::run_dispatch(M& m, const protocol::Call& call, const protocol::SlotSort& sort,
                                    protocol::RankSet& refused) {
  const uint64_t start_ns = m.now_ns();
  protocol::publish_header(m, view_, call, sort, 0);
  WaitResult result = protocol::wait_headers(m, view_, call, refused);
  report_.route_ns += m.now_ns() - start_ns;
  if (result != WaitResult::kReady) return result;
  clean(m, view_, call);
  cancelled_.store(!refused.empty(), std::memory_order_relaxed);
  if (!refused.empty()) {
    m.template store_release<protocol::Signal::kPlanReady>(view_.layout.plan_ready.in(view_.own()), call.epoch);
    return result;
  }
  protocol::clear_absent_ranges(view_, call);
  protocol::publish_plan(m, view_, call);
  count_received(inputs_.args->cumulative_recv_counts);
  const uint64_t pull_start_ns = m.now_ns();
  result = pull(m, call);
  report_.pull_ns = m.now_ns() - pull_start_ns;
  if (result != WaitResult::kReady) return result;
  return run_combine(m, call, workers_.num_workers(), *compute_.back());
}

template <protocol::Machine M>
void CpuRank<M>::run_worker(uint32_t worker_idx, const protocol::Call& call) {
  M m;
  Compute& compute = *compute_[worker_idx];
  {
    const Stopwatch<M> watch(m, times_.quantize_ns);
    protocol::fill_input(m, view_, call, inputs_.num_tokens,
                         [&](uint32_t first, uint32_t count) { compute.fill_input(inputs_, first, count); });
  }
  WaitResult result = protocol::wait_plan(m, view_, call, protocol::Role::kMath, worker_idx);
  if (result == WaitResult::kReady && cancelled_.load(std::memory_order_relaxed)) return;
  if (result == WaitResult::kReady) {
    TimedTiles<M> tiles{m, compute, inputs_, times_};
    result = protocol::run_tiles(m, view_, call, worker_idx, tiles);
  }
  if (result == WaitResult::kReady) result = run_combine(m, call, worker_idx, compute);
  if (result != WaitResult::kReady) failed_.store(true, std::memory_order_relaxed);
}

template <protocol::Machine M>
Status CpuRank<M>::finish(const protocol::Call& call, WaitResult dispatch_result, const protocol::RankSet& refused) {
  M m;
  cut_short_ = dispatch_result != WaitResult::kReady || failed_.load(std::memory_order_relaxed);
  if (cut_short_) {
    const uint64_t word = m.template load_acquire<protocol::Signal::kAbort>(view_.layout.abort_word.in(view_.own()));
    return backends::abort_status(view_, word);
  }
  if (refused.empty()) return {};
  const uint32_t source = refused.contains(view_.rank) ? view_.rank : backends::members(refused).front();
  return backends::refusal_status(view_, source, protocol::Banks(view_, call.bank()).refusal[source]);
}

template <protocol::Machine M>
void CpuRank<M>::fill_report(uint64_t start_ns) {
  M m;
  report_.quantize_ns = times_.quantize_ns;
  report_.l1_ns = times_.l1_ns;
  report_.l2_ns = times_.l2_ns;
  report_.combine_ns = times_.combine_ns;
  const uint32_t* rows = view_.layout.expert_num_rows.in(view_.own());
  report_.rows_per_expert.assign(rows, rows + view_.spec.routed_local_experts());
  report_.total_ns = m.now_ns() - start_ns;
}

template <protocol::Machine M>
Status CpuRank<M>::forward(const ForwardArgs& args, const Status& refusal) {
  M m;
  const uint64_t start_ns = m.now_ns();
  report_ = {};
  for (auto* sum : {&times_.quantize_ns, &times_.l1_ns, &times_.l2_ns, &times_.combine_ns}) *sum = 0;
  failed_ = false;
  cancelled_ = false;

  protocol::Call call;
  call.epoch = ++*view_.layout.epoch.in(view_.own());
  call.timeout_ns = args.timeout_ns != 0 ? args.timeout_ns : timeout_ns_;
  call.absent = backends::absent_ranks(args, view_.spec.num_ranks);
  inputs_ = {&args, refusal.ok() ? static_cast<uint32_t>(args.hidden_states.shape[0]) : 0, nullptr,
             args.swiglu_clamp.value_or(clamp_), static_cast<const WeightTable*>(weights_.get())};
  if (refusal.ok()) read_ids(args);
  inputs_.slot_experts = slot_experts_.data();

  // The workers need only the tokens, so they start before the ids are sorted; a refused call needs none of them.
  const bool start_workers = refusal.ok();
  if (start_workers) workers_.start([this, call](uint32_t worker_idx) { run_worker(worker_idx, call); });
  const protocol::SlotSort sort = sort_slots(args, refusal);
  report_.route_ns = m.now_ns() - start_ns;
  protocol::RankSet refused;
  const WaitResult result = run_dispatch(m, call, sort, refused);
  if (start_workers) workers_.join();
  const Status status = finish(call, result, refused);
  if (status.ok()) fill_report(start_ns);
  return status;
}

template <protocol::Machine M>
void CpuRank<M>::peer_died(uint32_t rank) {
  M m;
  protocol::report_death(m, view_, rank);
}

template <protocol::Machine M>
void CpuRank<M>::turn_away(const protocol::RankSet& late_ranks) {
  M m;
  protocol::turn_away(m, view_, late_ranks);
}

template <protocol::Machine M>
Status CpuRank<M>::reset() {
  const auto zero = [&](auto region) {
    auto* first = region.in(view_.own());
    std::memset(static_cast<void*>(first), 0, region.bytes());
  };
  const protocol::Workspace& w = view_.layout;
  zero(w.abort_word);
  zero(w.header);
  zero(w.refusal);
  zero(w.expert_done);
  zero(w.input_full);
  zero(w.epoch);
  zero(w.plan_ready);
  zero(w.bank_blocks);
  zero(w.tickets);
  zero(w.tokens_full);
  zero(w.acts_full);
  zero(w.acts_empty);
  zero(w.expert_blocks_done);
  zero(w.error_claim);
  zero(w.error_record);
  return {};
}

}  // namespace megamoe::cpu
