// One rank on one GPU (or on its share of one): owns what a launch needs besides the workspace.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/sm90/instance.h"
#include "backends/sm90/kernel_args.h"

struct CUstream_st;

namespace megamoe::sm90 {

/// Where a caller on the same GPU may write E4M3 tokens itself, so that nothing is copied.
struct InputViews {
  uint8_t* codes = nullptr;  // [max_tokens][hidden]
  float* scales = nullptr;   // [max_tokens][hidden / 128]
};

class Sm90Rank final : public backends::BackendRank {
 public:
  /// Collective: ranks learn how many of them share each GPU.
  static Result<std::unique_ptr<Sm90Rank>> create(const LayerConfig& config, const backends::BackendPlan& plan,
                                                  const KernelInstance& instance,
                                                  std::shared_ptr<SymmetricMemory> group);
  ~Sm90Rank() override;

  Status load_weights(const ExpertWeights& weights) override;
  /// enqueue() on the rank's own stream, then finish().
  Status forward(const ForwardArgs& args, const Status& refusal) override;
  void peer_died(uint32_t rank) override;
  void turn_away(const protocol::RankSet& late_ranks) override;
  bool cut_short() const override { return cut_short_; }
  Status reset() override;
  const ForwardReport& last_report() const override { return report_; }

  /// Launches one call. Does not wait, allocates nothing, and may be captured in a graph.
  Status enqueue(const ForwardArgs& args, const Status& refusal, CUstream_st* stream);
  /// What the call did that ended last. The stream must have been waited for.
  Status finish();

  /// Where a trace variant writes; device memory of num_ctas() x warps x capacity records.
  void set_trace(TraceRecord* records, uint32_t capacity) { args_.trace = {records, capacity}; }
  InputViews input_views() const;
  const protocol::RankView& view() const { return args_.view; }
  uint32_t num_ctas() const { return num_ctas_; }

 private:
  Sm90Rank(const LayerConfig& config, const backends::BackendPlan& plan, const KernelInstance& instance,
           std::shared_ptr<SymmetricMemory> group);
  Status open();
  Status share_gpu();
  CallTensors call_tensors(const ForwardArgs& args) const;
  /// @param which  of converted_scales_, for scales that are not FP32
  Result<const float*> float_scales(const TensorView& scales, uint32_t which);
  Status abort_reason(uint64_t abort_word);
  /// Leaves `record` in this rank's workspace and raises the abort word of `ranks`, beside a running kernel.
  void raise_abort(const protocol::ErrorRecord& record, const std::vector<uint32_t>& ranks);

  const KernelInstance& instance_;
  const LayerConfig config_;
  std::shared_ptr<SymmetricMemory> group_;
  uint64_t timeout_ns_;
  int device_ = 0;
  uint32_t num_ctas_ = 0;
  CUstream_st* stream_ = nullptr;       // forward() and reset()
  CUstream_st* side_stream_ = nullptr;  // peer_died(), beside a running kernel
  std::array<float*, 4> converted_scales_{};
  KernelArgs args_;
  bool cut_short_ = false;
  ForwardReport report_;
};

}  // namespace megamoe::sm90
