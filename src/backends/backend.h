// What a backend provides to the public layer: a plan for a shape, and a rank that runs calls.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "megamoe/moe_layer.h"
#include "protocol/rank_view.h"
#include "protocol/slot_rules.h"

namespace megamoe::backends {

/// Choices of one backend for one configuration.
struct BackendPlan {
  protocol::WorkspaceSpec workspace;
  protocol::ScheduleSpec schedule;
  LayerPlan report;  ///< Regions and totals are filled in by the caller from `workspace`.
};

/// The sizes in which the protocol counts: each rank's shared experts after its routed ones, a slot for each of them
/// after a token's K.
inline void set_shape(const LayerConfig& config, uint32_t num_ranks, protocol::WorkspaceSpec& spec) {
  spec.shape = config.shape;
  spec.shape.num_experts += config.num_shared_experts * num_ranks;
  spec.shape.top_k += config.num_shared_experts;
  spec.shared_experts = config.num_shared_experts;
  spec.num_ranks = num_ranks;
  spec.max_tokens = config.max_tokens_per_rank;
}

/// Bit r of ForwardArgs::active_ranks as a set of the ranks that do not take part.
inline protocol::RankSet absent_ranks(const ForwardArgs& args, uint32_t num_ranks) {
  protocol::RankSet absent;
  const protocol::RankSet active{{args.active_ranks[0], args.active_ranks[1]}};
  if (active.empty()) return absent;
  for (uint32_t rank = 0; rank < num_ranks; ++rank)
    if (!active.contains(rank)) absent.insert(rank);
  return absent;
}

/// What the ids and weights of a call mean on this rank. Precondition: the arguments have been validated.
protocol::SlotRules slot_rules(const LayerConfig& config, const protocol::RankView& view, const ForwardArgs& args);

/// The sight of the group that a rank of this plan has, once the group's memory is allocated.
inline protocol::RankView make_view(const BackendPlan& plan, const SymmetricMemory& group) {
  protocol::RankView view;
  view.spec = plan.workspace;
  view.schedule = plan.schedule;
  view.layout = protocol::Workspace::plan(plan.workspace);
  view.flat_base = reinterpret_cast<char*>(group.base());
  view.stride_bytes = group.stride_bytes();
  view.rank = group.rank();
  return view;
}

/// This rank's own.
inline InputViews input_views(const protocol::RankView& view, Device device, int32_t device_index = 0) {
  const protocol::Workspace& w = view.layout;
  const int64_t tokens = view.spec.max_tokens, hidden = view.spec.shape.hidden, groups = view.spec.hidden_groups();
  InputViews views{TensorView::dense(w.input_codes.in(view.own()), DType::kFloat8E4M3, {tokens, hidden}),
                   TensorView::dense(w.input_scales.in(view.own()), DType::kFloat32, {tokens, groups})};
  views.codes.device = views.scales.device = device;
  views.codes.device_index = views.scales.device_index = device_index;
  return views;
}

/// Weights as a backend's calls read them.
class WeightSet {
 public:
  virtual ~WeightSet() = default;
};

/// One rank's side of the layer, bound to an allocated and zeroed workspace. Not thread-safe.
class BackendRank {
 public:
  virtual ~BackendRank() = default;
  /// Arguments have been validated by the caller. The result keeps the views; later calls of prepare and use leave it
  /// as it is.
  virtual Result<std::shared_ptr<const WeightSet>> prepare_weights(const ExpertWeights& weights) = 0;
  /// @param weights  made by this rank
  virtual void use_weights(std::shared_ptr<const WeightSet> weights) = 0;
  Status load_weights(const ExpertWeights& weights) {
    Result<std::shared_ptr<const WeightSet>> prepared = prepare_weights(weights);
    if (!prepared.ok()) return prepared.status();
    use_weights(std::move(prepared).value());
    return {};
  }
  /// @param refusal  not ok: this rank refuses the call; the backend tells all ranks and returns the reason
  virtual Status forward(const ForwardArgs& args, const Status& refusal) = 0;
  /// As MoeLayer::finish.
  virtual Status finish() = 0;
  /// Another rank is dead: every wait of this rank must leave. The only call that may come from another thread.
  virtual void peer_died(uint32_t rank) = 0;
  /// Ranks that missed calls come to one in which this rank does not take part: tells them why.
  virtual void turn_away(const protocol::RankSet& late_ranks) = 0;
  /// Whether a call was cut short (deadline, abort), as forward or finish found out, so that only reset() helps.
  virtual bool cut_short() const = 0;
  /// Zeroes this rank's signals. The caller separates it from other ranks' calls by barriers.
  virtual Status reset() = 0;
  virtual const ForwardReport& last_report() const = 0;
};

/// Memory that is not the host's, for callers that hold their tensors elsewhere.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Device device() const = 0;
  virtual int32_t num_devices() const = 0;
  /// Freed with its last owner.
  virtual Result<std::shared_ptr<std::byte>> allocate(uint64_t bytes, int32_t device_index) const = 0;
  /// From host memory to the device or back. The bytes have arrived on return; waits for no running call.
  virtual Status copy(void* to, const void* from, uint64_t bytes, int32_t device_index) const = 0;
};

/// A compiled backend. See registry.cc for the list.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  /// Ok where this machine can run it at all; else the reason ("no NVIDIA driver found").
  /// @param device_index  the GPU in question, where it runs on GPUs
  virtual Status available(int32_t device_index = 0) const = 0;
  /// Where the group's memory and all tensors must lie; null for host memory.
  virtual const DeviceMemory* device_memory() const { return nullptr; }
  /// Ok where the shape can run; else the sentence with the nearest supported value. Allocates nothing.
  virtual Result<BackendPlan> plan(const LayerConfig& config, uint32_t num_ranks) const = 0;
  virtual Result<std::unique_ptr<BackendRank>> create(const LayerConfig& config, const BackendPlan& plan,
                                                      std::shared_ptr<SymmetricMemory> group) const = 0;
};

}  // namespace megamoe::backends
