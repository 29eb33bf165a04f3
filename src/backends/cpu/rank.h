// One rank on CPU threads: the calling thread is the dispatch role, the workers quantise, multiply and combine.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/compute.h"
#include "backends/cpu/machine.h"
#include "backends/cpu/workers.h"
#include "protocol/roles/dispatch.h"

namespace megamoe::cpu {

/// Nanoseconds that the workers spent, summed over them.
struct StageTimes {
  std::atomic<uint64_t> quantize_ns{0};
  std::atomic<uint64_t> l1_ns{0};
  std::atomic<uint64_t> l2_ns{0};
  std::atomic<uint64_t> combine_ns{0};
};

/// @tparam M  what the protocol's roles run on; tests choose machines that disturb it
template <protocol::Machine M = Machine>
class CpuRank final : public backends::BackendRank {
 public:
  CpuRank(const LayerConfig& config, const backends::BackendPlan& plan, const std::shared_ptr<SymmetricMemory>& group,
          uint32_t num_workers);

  Result<std::shared_ptr<const backends::WeightSet>> prepare_weights(const ExpertWeights& weights) override;
  void use_weights(std::shared_ptr<const backends::WeightSet> weights) override { weights_ = std::move(weights); }
  Status forward(const ForwardArgs& args, const Status& refusal) override;
  Status finish() override { return {}; }  // no call outlives forward
  void peer_died(uint32_t rank) override;
  void turn_away(const protocol::RankSet& late_ranks) override;
  bool cut_short() const override { return cut_short_; }
  Status reset() override;
  const ForwardReport& last_report() const override { return report_; }

 private:
  /// The caller's id, whatever its type and strides.
  static int64_t id_at(const ForwardArgs& args, uint32_t token, uint32_t slot);
  /// Which expert each slot goes to, by the rules of the call.
  void read_ids(const ForwardArgs& args);
  protocol::Refusal check_map() const;
  protocol::SlotSort sort_slots(const ForwardArgs& args, const Status& refusal);
  /// cumulative_recv_counts += what this call's plan says.
  void count_received(const TensorView& counts) const;
  /// Headers, plan, pull, then a share of the combining.
  protocol::WaitResult run_dispatch(M& m, const protocol::Call& call, const protocol::SlotSort& sort,
                                    protocol::RankSet& refused);
  protocol::WaitResult pull(M& m, const protocol::Call& call);
  protocol::WaitResult run_combine(M& m, const protocol::Call& call, uint32_t worker, Compute& compute);
  void run_worker(uint32_t worker_idx, const protocol::Call& call);
  Status finish(const protocol::Call& call, protocol::WaitResult dispatch_result, const protocol::RankSet& refused);
  void fill_report(uint64_t start_ns);

  const LayerConfig config_;
  protocol::RankView view_;
  std::shared_ptr<SymmetricMemory> group_;
  std::shared_ptr<const backends::WeightSet> weights_;  // a WeightTable; null before the first
  float clamp_;
  uint64_t timeout_ns_;
  std::vector<std::unique_ptr<Compute>> compute_;  // one per worker, then the dispatch thread's
  protocol::SlotRules rules_;
  std::vector<int32_t> slot_experts_;             // [T][top_k]
  std::vector<protocol::SlotRange> slot_ranges_;  // [num_experts]
  CallInputs inputs_;
  std::atomic<bool> cancelled_{false};  // published by plan_ready
  std::atomic<bool> failed_{false};     // some worker left early
  bool cut_short_ = false;
  StageTimes times_;
  ForwardReport report_;
  Workers workers_;  // last: its threads end before what they use
};

}  // namespace megamoe::cpu
