// Everything a run is given: the experts of each rank, the tokens of all ranks, and where they came from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "io/layer_files.h"
#include "io/moe_checkpoint.h"
#include "io/moe_weights.h"
#include "megamoe/shape.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// The ranks whose experts and tokens a process holds: [begin, end).
struct RankRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t count() const { return end - begin; }
};

/// Tokens of which the router here and the file choose the same experts.
struct RoutingAgreement {
  uint64_t num_tokens = 0;
  uint64_t num_equal = 0;
};

/// Tokens of rank r are the rows [sum of tokens_per_rank before r, + tokens_per_rank[r]) of all tokens.
struct LayerData {
  std::string title;  ///< "model tiny, random weights"
  MoeShape shape;
  std::optional<float> clamp;
  bool whole_block = false;  ///< Router and shared experts of a checkpoint too.
  RankRange ranks;
  std::vector<io::LayerWeights> weights;  ///< Of `ranks`, in order.
  io::SharedExperts shared;               ///< Of every rank; none where only routed experts are run.
  io::LayerInputs inputs;                 ///< Tokens of `ranks`.
  /// Where the router's weight belongs on the input of the routed experts, so that shared experts see other tokens:
  /// what they see. A second call runs them alone, and its rows are added.
  std::optional<io::LayerInputs> shared_inputs;
  std::vector<uint32_t> tokens_per_rank;  ///< Of all ranks.
  std::optional<io::FloatRows> compare;   ///< Rows to compare the output with; only where rank 0 is held.
  bool weights_were_fp8 = true;           ///< As stored; false where they were packed to E4M3 on loading.
  std::string compare_name;               ///< Of `compare`, in the file.
  std::vector<std::string> notes;         ///< What was done to the tokens, one sentence each.
  std::optional<RoutingAgreement> agreement;

  uint32_t num_ranks() const { return static_cast<uint32_t>(tokens_per_rank.size()); }
  bool holds_all_ranks() const { return ranks.count() == num_ranks(); }
  uint32_t most_tokens() const { return *std::max_element(tokens_per_rank.begin(), tokens_per_rank.end()); }
  /// Of all ranks before `rank`; with num_ranks(), of all.
  uint64_t tokens_before(uint32_t rank) const {
    return std::accumulate(tokens_per_rank.begin(), tokens_per_rank.begin() + rank, uint64_t{0});
  }
};

/// Parts of `num_tokens` that differ by at most one; the first ranks get the remainder.
std::vector<uint32_t> balanced_parts(uint64_t num_tokens, uint32_t num_ranks);

/// Reads and cross-checks configuration, tokens, the tensor to compare with, and the experts of each of `ranks`.
Result<LayerData> load_checkpoint_layer(const RunOptions& options, RankRange ranks);

/// Random weights and tokens of a preset. The experts depend on the seed alone, a token on the seed and its number over
/// all ranks: the same layer on any number of ranks.
Result<LayerData> make_random_layer(const api::ModelPreset& model, const Execution& execution,
                                    const RandomChoice& random, RankRange ranks);

/// What the options ask for, of `ranks`.
Result<LayerData> load_layer(const RunOptions& options, RankRange ranks);

/// Fresh tokens and routing of `ranks`.
Result<io::LayerInputs> make_random_inputs(const MoeShape& shape, const std::vector<uint32_t>& tokens_per_rank,
                                           RankRange ranks, const Routing& routing, uint64_t seed);

}  // namespace megamoe::cli
