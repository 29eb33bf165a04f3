// R ranks of one layer as threads of the test: create, load, forward, compare with the oracle.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/tensor_store.h"
#include "megamoe/moe_layer.h"
#include "support/data.h"

namespace megamoe::test {

/// A group of ranks for layers of this backend; ranks of a GPU backend share the current GPU.
Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_members(const std::string& backend, uint32_t num_ranks);

/// Runs `body(rank)` on one thread per rank and returns each rank's status.
std::vector<Status> on_each_rank(uint32_t num_ranks, const std::function<Status(uint32_t)>& body);

/// What one rank got from a forward call.
struct RankOutput {
  Status status;
  std::vector<uint16_t> rows;  ///< [T][H] bf16; kPoison where nothing was written.
  double max_rel_l2 = 1e-2;    ///< What the oracle allows a row of this backend.
  double min_cosine = 0.9999;
};
inline constexpr uint16_t kPoison = 0x7fbd;  ///< A NaN that no computation here produces.

/// A layer on every rank of a thread group, on one GPU for backend cuda: then tensors are copied there and back.
class LayerGroup {
 public:
  /// Creates the layers (collective) and loads each rank's part of `weights`, which must outlive this. Check created().
  LayerGroup(const LayerConfig& config, uint32_t num_ranks, const TestWeights& weights);
  /// The same over a given group.
  LayerGroup(const LayerConfig& config, const std::vector<std::shared_ptr<SymmetricMemory>>& members,
             const TestWeights& weights);
  ~LayerGroup();
  LayerGroup(const LayerGroup&) = delete;
  LayerGroup& operator=(const LayerGroup&) = delete;

  uint32_t num_ranks() const { return num_ranks_; }
  const std::vector<Status>& created() const { return created_; }
  /// Must have been created: ends the program with the reason where it was not.
  MoeLayer& layer(uint32_t rank);
  /// The args that forward() uses for a rank; for tests that change one thing.
  ForwardArgs args(uint32_t rank, const TestTokens& tokens, std::vector<uint16_t>& output) const;

  /// Where a layer was not created the test fails and every status says why.
  std::vector<RankOutput> forward(const std::vector<TestTokens>& tokens);
  /// @param adjust  may change the args of a rank; what it points at in host memory is copied to the GPU and back
  std::vector<RankOutput> forward(const std::vector<TestTokens>& tokens,
                                  const std::function<void(uint32_t, ForwardArgs&)>& adjust);
  /// A call from which `left_out` ranks stay away; the others are told so.
  std::vector<RankOutput> forward_without(const std::vector<uint32_t>& left_out, const std::vector<TestTokens>& tokens,
                                          const std::function<void(uint32_t, ForwardArgs&)>& adjust = {});
  /// Several calls, which every rank makes one after another without waiting for the end of a call on other ranks.
  /// @return [call][rank]
  std::vector<std::vector<RankOutput>> forward_sequence(const std::vector<std::vector<TestTokens>>& calls);
  std::vector<Status> reset();

 private:
  std::vector<RankOutput> forward(const std::vector<TestTokens>& tokens,
                                  const std::function<void(uint32_t, ForwardArgs&)>& adjust,
                                  const std::vector<bool>& takes_part);
  void open(const std::vector<std::shared_ptr<SymmetricMemory>>& members, const TestWeights& weights);
  /// Ok where every rank has a layer; else the reason, which the test has also been told of.
  Status usable() const;

  LayerConfig config_;
  uint32_t num_ranks_;
  std::vector<Status> created_;
  std::vector<api::TensorStore> weights_;  ///< By rank.
  std::vector<std::optional<MoeLayer>> layers_;
};

/// No rows yet, and the limits of this configuration.
RankOutput unwritten_output(const LayerConfig& config);

/// One rank's call: `output` is sized and poisoned.
ForwardArgs forward_args(const MoeShape& shape, const TestTokens& tokens, std::vector<uint16_t>& output);

/// The tensors of a call or of weights, absent ones too.
std::vector<TensorView*> views_of(ExpertWeights& weights);
std::vector<TensorView*> views_of(ForwardArgs& args);

/// This rank's experts as the public view, with the shared ones.
ExpertWeights rank_weights(const TestWeights& weights, uint32_t rank, uint32_t num_ranks);

/// A configuration with small sizes; tests change what they need.
LayerConfig small_config(const MoeShape& shape, uint32_t max_tokens);

/// Every status ok; failures are reported with the rank's message.
void expect_all_ok(const std::vector<RankOutput>& outputs);
void expect_all_ok(const std::vector<Status>& statuses);
/// NUM: each row's relative L2 and cosine against the oracle within the output's limits; rows of zeros must be zeros.
void expect_matches_oracle(const TestWeights& weights, std::optional<float> clamp,
                           const std::vector<TestTokens>& tokens, const std::vector<RankOutput>& outputs);
/// The same for one rank and any input, quantised tokens included.
void expect_matches_oracle(const reference::Layer& layer, const reference::Input& input, const RankOutput& output);
/// TAG: every element within 2 BF16 ulp of the closed form, exactly 0 where it is 0.
void expect_tag(const MoeShape& shape, const std::vector<TestTokens>& tokens, const std::vector<RankOutput>& outputs);
/// Bitwise equality of all rows, concatenated over ranks.
void expect_same_bits(const std::vector<RankOutput>& a, const std::vector<RankOutput>& b);

/// A call refused because of rank `culprit`: it answers `code` with `reason` in the message, every other rank
/// kPeerFailed with the same sentence, and no output was written.
void expect_refused(const std::vector<RankOutput>& outputs, uint32_t culprit, Code code, const std::string& reason);
/// No element of any output was written.
void expect_untouched(const std::vector<RankOutput>& outputs);
/// One token's row.
std::vector<uint16_t> row_of(const MoeShape& shape, const RankOutput& output, uint64_t token);

/// One rank's tokens out of several, in order.
TestTokens join_tokens(const std::vector<TestTokens>& parts);
/// Splits tokens over ranks in contiguous, balanced parts.
std::vector<TestTokens> split_tokens(const MoeShape& shape, const TestTokens& all, uint32_t num_ranks);

}  // namespace megamoe::test
