// A small group of ranks under the deterministic scheduler: the protocol's own roles, arithmetic that only records
// which row is where, and exact assertions.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "deterministic_machine.h"
#include "protocol/roles/combine.h"
#include "protocol/roles/dispatch.h"
#include "protocol/roles/input.h"
#include "protocol/roles/tiles.h"

namespace megamoe::test {

/// One rank's part of one call.
struct ModelInputs {
  uint32_t num_tokens = 0;
  std::vector<int64_t> topk_ids;  ///< [num_tokens][top_k]
};

struct ModelConfig {
  const char* name = "";
  uint32_t num_ranks = 2;
  uint32_t num_workers = 1;
  uint32_t num_experts = 2;
  uint32_t top_k = 1;
  uint32_t max_tokens = 3;
  uint32_t block_m = 1;
  uint32_t extra_m = 0;
  uint32_t token_ring_blocks = 1;
  uint32_t act_ring_blocks = 1;
  uint32_t unit_blocks = 1;
  uint32_t num_l1_tiles = 1;
  uint32_t num_l2_tiles = 1;
  int absent_rank = -1;                         ///< Never calls; time passes.
  std::vector<std::vector<ModelInputs>> calls;  ///< [call][rank]
  /// By rank: the call from which on the others leave it out, and it calls no more; empty: none is.
  std::vector<uint32_t> left_out_from;

  bool is_left_out(uint32_t rank, uint32_t call_idx) const {
    return !left_out_from.empty() && call_idx >= left_out_from[rank];
  }
  protocol::Call call(uint32_t call_idx, uint64_t timeout_ns) const {
    protocol::Call call{call_idx + 1, timeout_ns, {}};
    for (uint32_t rank = 0; rank < num_ranks; ++rank)
      if (is_left_out(rank, call_idx)) call.absent.insert(rank);
    return call;
  }
};

/// One rank's arithmetic: it writes which row is where, and fails the run where a row is not what it must be.
class ModelArithmetic {
 public:
  ModelArithmetic(Scheduler& scheduler, const ModelConfig& config, const protocol::RankView& view)
      : scheduler_(scheduler), config_(config), view_(view) {}
  virtual ~ModelArithmetic() = default;
  ModelArithmetic(const ModelArithmetic&) = delete;
  ModelArithmetic& operator=(const ModelArithmetic&) = delete;

  virtual void add_agents() = 0;
  void restart() {
    started_calls_ = num_busy_ = 0;
    given_up_ = false;
    left_as_.clear();
  }
  bool given_up() const { return given_up_; }
  /// Whether somebody wrote to this rank's workspace after it had left.
  bool was_written_to() const;

 protected:
  void start_call(const ModelInputs& inputs, const protocol::Call& call);
  void fill(MachineCore& m, const protocol::Call& call, uint32_t first, uint32_t count);
  void l1_tile(MachineCore& m, const protocol::Call& call, const protocol::Tile& tile, uint32_t num_rows);
  void l2_tile(MachineCore& m, const protocol::Call& call, const protocol::Tile& tile, uint32_t num_rows);
  void sum(const protocol::Call& call, uint32_t token);
  /// What must hold when a rank leaves a call.
  void check_call(const protocol::Call& call, const protocol::RankSet& refused);
  /// -1 for experts of ranks that are left out, as a backend's rules make it.
  int64_t id_at(uint32_t token, uint32_t slot) const;
  /// No more calls: from here on nobody may write to this rank's workspace.
  void leave();

  Scheduler& scheduler_;
  const ModelConfig& config_;
  protocol::RankView view_;
  const ModelInputs* inputs_ = nullptr;
  bool given_up_ = false;
  uint32_t started_calls_ = 0;
  uint32_t num_busy_ = 0;

 private:
  protocol::RowMeta meta_of(const protocol::Tile& tile, uint32_t row) const;
  void* combine_cell(uint32_t rank, uint32_t token_slot, uint32_t n) const;
  [[noreturn]] void fail(const std::string& what);

  protocol::RankSet absent_;
  std::vector<char> left_as_;  ///< The workspace when this rank left.
  std::set<std::tuple<int, uint32_t, uint32_t>> tiles_;
  std::vector<uint32_t> combined_;
};

/// One rank: what CpuRank::forward composes, on fibers.
template <Mutation kMutation>
class ModelRank final : public ModelArithmetic {
 public:
  using M = DeterministicMachine<kMutation>;
  using WaitResult = protocol::WaitResult;

  ModelRank(Scheduler& scheduler, const ModelConfig& config, const protocol::RankView& view)
      : ModelArithmetic(scheduler, config, view), ranges_(config.num_experts) {}

  void add_agents() override {
    const std::string rank = "rank " + std::to_string(view_.rank);
    if (static_cast<int>(view_.rank) == config_.absent_rank) return;
    scheduler_.add_agent(rank + " dispatch", [this] { dispatch(); });
    for (uint32_t worker = 0; worker < config_.num_workers; ++worker)
      scheduler_.add_agent(rank + " worker " + std::to_string(worker), [this, worker] { work(worker); });
  }

 private:
  void dispatch() {
    for (uint32_t c = 0; c < config_.calls.size() && !given_up_ && !config_.is_left_out(view_.rank, c); ++c) {
      const protocol::Call call = config_.call(c, kTimeoutNs);
      start_call(config_.calls[c][view_.rank], call);
      cancelled_ = false;
      num_busy_ = config_.num_workers;
      started_calls_ = c + 1;
      scheduler_.changed();
      M m(scheduler_, view_, call.epoch, protocol::Role::kDispatch);
      protocol::RankSet refused;
      const WaitResult result = run_dispatch(m, call, refused);
      scheduler_.wait_until("its workers", [&] { return num_busy_ == 0; });
      if (result != WaitResult::kReady) given_up_ = true;
      if (!given_up_) check_call(call, refused);
    }
    if (config_.is_left_out(view_.rank, static_cast<uint32_t>(config_.calls.size()) - 1)) leave();
    started_calls_ = UINT32_MAX;
    scheduler_.changed();
  }

  WaitResult run_dispatch(M& m, const protocol::Call& call, protocol::RankSet& refused) {
    const protocol::Refusal refusal = protocol::sort_slots(
        view_, inputs_->num_tokens, [&](uint32_t token, uint32_t slot) { return id_at(token, slot); },
        [](uint32_t, uint32_t) { return 1.0f; }, ranges_.data());
    protocol::publish_header(m, view_, call, {ranges_.data(), refusal}, 0);
    WaitResult result = protocol::wait_headers(m, view_, call, refused);
    if (result != WaitResult::kReady) return result;
    m.clean_idle_bank(view_, call);
    cancelled_ = !refused.empty();
    if (cancelled_) {
      m.template store_release<Signal::kPlanReady>(view_.layout.plan_ready.in(view_.own()), call.epoch);
      return result;
    }
    m.clear_absent_ranges(view_, call);
    protocol::publish_plan(m, view_, call);
    const protocol::PoolPlan plan = view_.pool_plan();
    const protocol::Banks own(view_, call.bank());
    std::vector<protocol::SourceCursor> cursors;
    const uint32_t local = view_.spec.local_experts();
    for (uint32_t n = 0; n < config_.num_ranks; ++n) {
      const uint64_t source = protocol::nth_source(view_.rank, n, config_.num_ranks);
      cursors.emplace_back(plan, own.slot_ranges + source * local, plan.source_first_row + source * local);
    }
    result = protocol::pull_rows(m, view_, call, cursors.data());
    return result == WaitResult::kReady ? run_combine(m, call, config_.num_workers) : result;
  }

  void work(uint32_t worker) {
    for (uint32_t c = 1;; ++c) {
      scheduler_.wait_until("the next call", [&] { return started_calls_ >= c; });
      if (started_calls_ == UINT32_MAX) return;
      const protocol::Call call = config_.call(c - 1, kTimeoutNs);
      M m(scheduler_, view_, call.epoch, protocol::Role::kMath);
      if (run_worker(m, call, worker) != WaitResult::kReady) given_up_ = true;
      --num_busy_;
      scheduler_.changed();
    }
  }

  WaitResult run_worker(M& m, const protocol::Call& call, uint32_t worker) {
    protocol::fill_input(m, view_, call, inputs_->num_tokens,
                         [&](uint32_t first, uint32_t count) { fill(m, call, first, count); });
    WaitResult result = protocol::wait_plan(m, view_, call, protocol::Role::kMath, worker);
    if (result != WaitResult::kReady || cancelled_) return result;
    Tiles tiles{*this, m, call};
    result = protocol::run_tiles(m, view_, call, worker, tiles);
    return result == WaitResult::kReady ? run_combine(m, call, worker) : result;
  }

  WaitResult run_combine(M& m, const protocol::Call& call, uint32_t worker) {
    return protocol::combine_tokens(
        m, view_, call, worker, inputs_->num_tokens, [&](uint32_t token, uint32_t slot) { return id_at(token, slot); },
        [&](uint32_t token) { sum(call, token); });
  }

  struct Tiles {
    ModelRank& rank;
    M& m;
    const protocol::Call& call;
    void l1_tile(const protocol::Tile& tile, uint32_t num_rows) { rank.l1_tile(m, call, tile, num_rows); }
    void l2_tile(const protocol::Tile& tile, uint32_t num_rows) { rank.l2_tile(m, call, tile, num_rows); }
  };

  static constexpr uint64_t kTimeoutNs = 100'000'000;

  std::vector<protocol::SlotRange> ranges_;
  bool cancelled_ = false;
};

/// The group: run() plays all calls under one schedule.
class Model {
 public:
  using MakeRank = std::unique_ptr<ModelArithmetic> (*)(Scheduler&, const ModelConfig&, const protocol::RankView&);

  Model(const ModelConfig& config, MakeRank make_rank);

  /// @return empty, or what went wrong
  std::string run(const Choices& choices);
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  /// Every rank that called gave up, and what it says names the absent rank.
  std::string check_blame();

  static constexpr uint64_t kAlignWords = protocol::Workspace::kAlignBytes / sizeof(uint64_t);

  ModelConfig config_;
  std::vector<uint64_t> memory_;
  Scheduler scheduler_;
  std::vector<protocol::RankView> views_;
  std::vector<std::unique_ptr<ModelArithmetic>> ranks_;
};

/// Ranks that break the protocol in one way, or not at all.
template <Mutation kMutation = Mutation{}>
std::unique_ptr<ModelArithmetic> make_model_rank(Scheduler& scheduler, const ModelConfig& config,
                                                 const protocol::RankView& view) {
  return std::make_unique<ModelRank<kMutation>>(scheduler, config, view);
}

}  // namespace megamoe::test
