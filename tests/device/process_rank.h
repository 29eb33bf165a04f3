// One rank of a group of processes on GPUs: its membership, its layer, and one batch of tokens that every call repeats.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/tensor_store.h"
#include "backends/sm90/rank.h"
#include "megamoe/moe_layer.h"
#include "megamoe/process_group.h"
#include "support/data.h"

namespace megamoe::device_check {

/// What all ranks of a check have in common. Weights and tokens follow from it.
struct Job {
  MoeShape shape;
  uint32_t num_ranks = 2;
  uint32_t tokens_per_rank = 0;
  std::vector<int32_t> gpus;  ///< Ranks use them in turn.
  std::string folder;         ///< Where the ranks meet.
  uint64_t timeout_ns = 60'000'000'000;

  LayerConfig config() const;
  test::TestWeights weights() const { return test::gen_weights(shape, 11); }
  /// Of all ranks, in order.
  test::TestTokens tokens() const { return test::gen_tokens(shape, uint64_t{num_ranks} * tokens_per_rank, 12); }
};

class ProcessRank {
 public:
  ProcessRank(const Job& job, uint32_t rank) : job_(job), rank_(rank) {}

  /// Joins and copies weights and tokens to the GPU.
  Status join();
  /// A layer through the public interface.
  Status open_layer();
  /// The backend's rank alone, for what goes below that interface: graphs, chosen kernels.
  Status open_kernel(const sm90::KernelInstance& instance);

  SymmetricMemory& group() { return *group_; }
  Status barrier(const char* what) { return group_->all_gather("", what, job_.timeout_ns).status(); }
  Status forward() { return layer_->forward(args_); }
  MoeLayer& layer() { return *layer_; }
  sm90::Sm90Rank& kernel() { return *kernel_; }
  const ForwardArgs& args() const { return args_; }

  /// The bytes of the output rows; an error is text that no rows have.
  std::string rows();
  /// Overwrites the output on the GPU, so that a row that is not written shows.
  Status poison();

 private:
  const Job job_;
  const uint32_t rank_;
  std::shared_ptr<SymmetricMemory> group_;
  test::TestWeights weights_;
  test::TestTokens tokens_;
  std::vector<uint16_t> output_;
  std::optional<api::TensorStore> store_;
  ExpertWeights weight_views_;
  ForwardArgs args_;
  std::unique_ptr<sm90::Sm90Rank> kernel_;
  std::optional<MoeLayer> layer_;
};

}  // namespace megamoe::device_check
