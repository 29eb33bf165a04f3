// The ranks of one layer on CPU threads, on any machine: what MoeLayer does, without the public layer in between.
#pragma once

#include <gtest/gtest.h>

#include "backends/cpu/backend.h"
#include "backends/cpu/rank_impl.h"
#include "support/layer_group.h"

namespace megamoe::test {

template <protocol::Machine M>
class CpuGroup {
 public:
  CpuGroup(const LayerConfig& config, uint32_t num_ranks, const TestWeights& weights)
      : config_(config), members_(make_thread_group(num_ranks).value()), ranks_(num_ranks) {
    const backends::BackendPlan plan = cpu::plan_cpu(config, num_ranks).value();
    layout_ = protocol::Workspace::plan(plan.workspace);
    const auto statuses = on_each_rank(num_ranks, [&](uint32_t rank) {
      const Status status = members_[rank]->allocate(layout_.bytes, kMeetingNs);
      if (!status.ok()) return status;
      ranks_[rank] = std::make_unique<cpu::CpuRank<M>>(config, plan, members_[rank], config.num_threads);
      return ranks_[rank]->load_weights(rank_weights(weights, rank, num_ranks));
    });
    expect_all_ok(statuses);
  }
  ~CpuGroup() {
    (void)on_each_rank(num_ranks(), [&](uint32_t rank) {
      ranks_[rank].reset();
      return members_[rank]->release(kMeetingNs);
    });
  }
  CpuGroup(const CpuGroup&) = delete;
  CpuGroup& operator=(const CpuGroup&) = delete;

  uint32_t num_ranks() const { return static_cast<uint32_t>(members_.size()); }
  cpu::CpuRank<M>& rank(uint32_t rank) { return *ranks_[rank]; }
  const protocol::Workspace& layout() const { return layout_; }
  /// Where rank 0's workspace starts; the others follow at equal strides.
  char* base() const { return reinterpret_cast<char*>(members_[0]->base()); }
  uint64_t stride_bytes() const { return members_[0]->stride_bytes(); }

  /// @param active_ranks  a bit a rank; 0: all
  Status forward(uint32_t rank, const TestTokens& tokens, RankOutput& output, uint64_t active_ranks = 0) {
    const auto t = static_cast<int64_t>(tokens.num_tokens);
    const int64_t h = config_.shape.hidden, k = config_.shape.top_k;
    output.rows.assign(static_cast<size_t>(t * h), kPoison);
    ForwardArgs args;
    args.hidden_states = TensorView::dense(tokens.hidden.data(), DType::kBFloat16, {t, h});
    args.topk_ids = TensorView::dense(tokens.topk_ids.data(), DType::kInt64, {t, k});
    args.topk_weights = TensorView::dense(tokens.topk_weights.data(), DType::kFloat32, {t, k});
    args.output = TensorView::dense(output.rows.data(), DType::kBFloat16, {t, h});
    args.active_ranks[0] = active_ranks;
    output.status = ranks_[rank]->forward(args, {});
    return output.status;
  }

  /// One call.
  std::vector<RankOutput> forward(const std::vector<TestTokens>& tokens) {
    std::vector<RankOutput> outputs(num_ranks());
    (void)on_each_rank(num_ranks(), [&](uint32_t rank) { return forward(rank, tokens[rank], outputs[rank]); });
    return outputs;
  }

  /// All calls, [call][rank], with nothing but the protocol between them.
  std::vector<std::vector<RankOutput>> forward_all(const std::vector<std::vector<TestTokens>>& calls) {
    std::vector<std::vector<RankOutput>> outputs(calls.size(), std::vector<RankOutput>(num_ranks()));
    (void)on_each_rank(num_ranks(), [&](uint32_t rank) {
      for (size_t call = 0; call < calls.size(); ++call) {
        const Status status = forward(rank, calls[call][rank], outputs[call][rank]);
        if (!status.ok()) return status;
      }
      return Status{};
    });
    return outputs;
  }

 private:
  static constexpr uint64_t kMeetingNs = 60'000'000'000;

  LayerConfig config_;
  std::vector<std::shared_ptr<SymmetricMemory>> members_;
  protocol::Workspace layout_;
  std::vector<std::unique_ptr<cpu::CpuRank<M>>> ranks_;
};

/// Where a signal's word lies: in whose workspace, and which cell of its region.
struct WordPlace {
  uint32_t rank = 0;
  uint64_t index = 0;
};
template <class T>
WordPlace place_of(const T* word, const protocol::Region<T>& region, const char* base, uint64_t stride_bytes) {
  const auto offset = static_cast<uint64_t>(reinterpret_cast<const char*>(word) - base);
  return {static_cast<uint32_t>(offset / stride_bytes), (offset % stride_bytes - region.offset) / sizeof(T)};
}

/// True where the rows of two calls are the same, bit for bit.
inline bool same_bits(const std::vector<RankOutput>& a, const std::vector<RankOutput>& b) {
  for (size_t rank = 0; rank < a.size(); ++rank)
    if (!a[rank].status.ok() || !b[rank].status.ok() || a[rank].rows != b[rank].rows) return false;
  return a.size() == b.size();
}

}  // namespace megamoe::test
