// One rank on one GPU (or on its share of one): owns what a launch needs besides the workspace.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/sm90/instance.h"
#include "backends/sm90/kernel_args.h"

struct CUevent_st;
struct CUstream_st;

namespace megamoe::sm90 {

/// What a launch takes of weights: maps, and scales as FP32.
struct Sm90Weights final : backends::WeightSet {
  ~Sm90Weights() override;
  /// Where the scales are as FP32; others are converted into memory of this set.
  Status read_scales(const TensorView& tensor, CUstream_st* stream, const float*& values);

  int device = 0;
  WeightScales scales;
  CUtensorMap w13{}, w2{}, shared_w13{}, shared_w2{};
  std::vector<float*> converted;
};

class Sm90Rank final : public backends::BackendRank {
 public:
  /// Collective: ranks learn how many of them share each GPU.
  static Result<std::unique_ptr<Sm90Rank>> create(const LayerConfig& config, const backends::BackendPlan& plan,
                                                  const KernelInstance& instance,
                                                  std::shared_ptr<SymmetricMemory> group);
  ~Sm90Rank() override;

  Result<std::shared_ptr<const backends::WeightSet>> prepare_weights(const ExpertWeights& weights) override;
  void use_weights(std::shared_ptr<const backends::WeightSet> weights) override;
  /// On the caller's stream where it gives one; else on the rank's own, and waits.
  Status forward(const ForwardArgs& args, const Status& refusal) override;
  void peer_died(uint32_t rank) override;
  void turn_away(const protocol::RankSet& late_ranks) override;
  bool cut_short() const override { return cut_short_; }
  Status reset() override;
  const ForwardReport& last_report() const override { return report_; }

  /// Launches one call behind the last one. Does not wait, allocates nothing, and may be captured in a graph.
  /// @param refusal  not ok: tells all ranks that this rank refuses the call
  Status enqueue(const ForwardArgs& args, const Status& refusal, CUstream_st* stream);
  Status finish() override;

  /// Where a trace variant writes; device memory of num_ctas() x warps x capacity records.
  void set_trace(TraceRecord* records, uint32_t capacity) { args_.trace = {records, capacity}; }
  const protocol::RankView& view() const { return args_.view; }
  uint32_t num_ctas() const { return num_ctas_; }

 private:
  Sm90Rank(const LayerConfig& config, const backends::BackendPlan& plan, const KernelInstance& instance,
           std::shared_ptr<SymmetricMemory> group);
  Status open();
  Status share_gpu();
  /// Ok where the tensors lie on the rank's GPU.
  Status check_device(const char* where, std::initializer_list<const TensorView*> views) const;
  CallTensors call_tensors(const ForwardArgs& args) const;
  /// Leaves `record` in this rank's workspace and raises the abort word of `ranks`, beside a running kernel.
  void raise_abort(const protocol::ErrorRecord& record, const std::vector<uint32_t>& ranks);
  /// Makes a stream other than the last call's wait for it.
  Status follow_last_call(CUstream_st* stream);
  Status forward_on(const ForwardArgs& args, const Status& own, CUstream_st* stream);
  /// Ok where no other rank of this process has its part of the same call on that stream.
  Status check_stream(CUstream_st* stream);
  /// Not ok once a call was cut short.
  Status check_cut_short();
  /// The first refusal that the GPU found and no call has told of yet.
  /// @param current_epoch  a call whose refusal is not called an earlier one
  Status take_refusal(uint32_t current_epoch);
  Status read_rows_per_expert();

  const KernelInstance& instance_;
  const LayerConfig config_;
  std::shared_ptr<SymmetricMemory> group_;
  uint64_t timeout_ns_;
  int device_;  // the current one of every call's thread while that lasts
  uint32_t num_ctas_ = 0;
  CUstream_st* stream_ = nullptr;       // forward() and reset()
  CUstream_st* side_stream_ = nullptr;  // peer_died(), beside a running kernel
  CUevent_st* last_call_ = nullptr;     // the end of the last call that was not captured
  unsigned long long last_stream_id_ = 0;
  uint64_t num_stream_calls_ = 0;                       // on streams of the caller
  std::shared_ptr<const backends::WeightSet> weights_;  // those in args_, kept
  KernelArgs args_;
  bool cut_short_ = false;
  ForwardReport report_;
};

}  // namespace megamoe::sm90
