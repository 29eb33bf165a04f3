// The ranks of one run: a thread and a layer each, driven together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/tensor_store.h"
#include "io/layer_files.h"
#include "io/moe_checkpoint.h"
#include "io/moe_weights.h"
#include "megamoe/moe_layer.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Runs `work(rank)` on a thread per rank and waits for all. Where several fail, the rank that found the cause is
/// preferred to those that only heard of it.
Status for_each_rank(uint32_t num_ranks, const std::function<Status(uint32_t)>& work);

class RankTeam {
 public:
  RankTeam(RankTeam&&) noexcept = default;
  RankTeam& operator=(RankTeam&&) = delete;
  /// Layers leave their group together: each on its own thread.
  ~RankTeam();

  /// Creates a layer on every rank of a group of threads and gives it its experts and the shared ones, which must
  /// outlive the team; they are copied to the GPU where that runs the layer.
  /// @param devices  the GPU of each rank, with backend cuda
  static Result<RankTeam> create(const LayerConfig& config, const std::vector<int32_t>& devices,
                                 const std::vector<io::LayerWeights>& weights, const io::SharedExperts& shared);

  /// One call on every rank. `output` holds BF16 rows in the order of `inputs`. Returns the nanoseconds from the first
  /// rank's start to the last rank's end, without copies to and from a GPU.
  Result<uint64_t> forward(const io::LayerInputs& inputs, const std::vector<uint32_t>& tokens_per_rank,
                           std::span<uint16_t> output);

  uint32_t num_ranks() const { return static_cast<uint32_t>(layers_.size()); }
  const LayerPlan& plan() const { return layers_.front()->plan(); }
  const ForwardReport& last_report(uint32_t rank) const { return layers_[rank]->last_report(); }
  /// Rows that each expert received in the last call, over all ranks.
  std::vector<uint64_t> rows_per_expert() const;

 private:
  RankTeam(uint32_t num_ranks, std::string backend, std::vector<int32_t> devices)
      : backend_(std::move(backend)), devices_(std::move(devices)), layers_(num_ranks) {}

  std::string backend_;
  std::vector<int32_t> devices_;
  std::vector<api::TensorStore> weights_;        ///< By rank.
  std::vector<std::optional<MoeLayer>> layers_;  ///< By rank; none in a team that was moved from.
};

}  // namespace megamoe::cli
