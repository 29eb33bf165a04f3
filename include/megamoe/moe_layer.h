// The one class most users need: an expert-parallel MoE layer on one rank of a group.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megamoe/shape.h"
#include "megamoe/status.h"
#include "megamoe/symmetric_memory.h"
#include "megamoe/tensor.h"

namespace megamoe {

inline constexpr uint64_t kDefaultTimeoutNs = 300'000'000'000;

/// Row order of w13. Stated with the weights, never guessed.
enum class W13Layout : uint8_t {
  kUnspecified = 0,  ///< Refused.
  kGateUp,           ///< I gate rows, then I up rows (Hugging Face, vLLM).
  kUpGate,           ///< I up rows, then I gate rows.
  kInterleaved1,     ///< gate, up, gate, up, ... row by row.
  kInterleaved8,     ///< 8 gate rows, 8 up rows, ...
};

/// How the numbers of a scale tensor are to be read. Stated with the tensors; a mismatch with their dtype or values is
/// refused.
enum class ScaleFormat : uint8_t {
  kUnspecified = 0,  ///< Refused.
  kFloat32,          ///< FP32 multipliers: value = code * scale.
  kUe8m0,  ///< Powers of two: one exponent byte each (dtype kFloat8E8M0), or FP32 values that are powers of two.
};

/// What a layer is. Equal on all ranks, except num_threads.
struct LayerConfig {
  MoeShape shape{};
  uint32_t max_tokens_per_rank = 0;         ///< Capacity of one forward call on each rank, at least 1.
  std::optional<float> swiglu_clamp{};      ///< gate <= c, |up| <= c before SwiGLU; absent or +inf: none. Must be > 0.
  uint64_t timeout_ns = kDefaultTimeoutNs;  ///< Of every wait for another rank.
  std::string backend = "auto";             ///< "auto" (by the group's memory; plan(): cpu), "cpu", "cuda".
  uint32_t num_threads = 0;                 ///< CPU workers of this rank; 0: the machine's cores shared by its ranks.

  /// m: experts of intermediate size I that every token visits besides its K, with the same weights on every rank, each
  /// rank running them for its own tokens: y = routed_scaling * routed + shared. E + m * ranks <= 1,024, K + m <= 32.
  uint32_t num_shared_experts = 0;
  float routed_scaling = 1.0f;  ///< Multiplies every top-k weight (not those of shared experts), in FP32. Finite.
  /// Not 0: topk_ids name logical experts in [0, num_logical_experts), and ForwardArgs::expert_map says in every call
  /// which of the num_experts physical ones stand for them. At most 1,024.
  uint32_t num_logical_experts = 0;

  // Sizes that never change a result, only memory and speed; 0 chooses.
  uint32_t block_rows = 0;         ///< Rows of a pool block (CPU: 8 to 256).
  uint32_t token_ring_blocks = 0;  ///< Blocks of received tokens held at a time.
  uint32_t act_ring_blocks = 0;    ///< Blocks of activations held between the two GEMMs.
  uint32_t unit_blocks = 0;        ///< Blocks of an expert that share a pass over its weights.
  uint32_t lag_units = 0;          ///< Units by which the second GEMM stays behind the first.
  uint32_t num_reserved_sms = 0;   ///< SMs of a GPU that its ranks leave to other kernels. May differ between ranks.
};

/// The weights of this rank's experts, in expert order (n = num_experts / num_ranks). Borrowed: they must outlive the
/// layer's use.
struct ExpertWeights {
  TensorView w13{};  ///< [n, 2 * I, H] float8_e4m3fn, dense.
  /// [n, 2, ceil(I / 128), H / 128], or [n, 2 * I / 128, H / 128] where I is a multiple of 128.
  TensorView w13_scale{};
  TensorView w2{};                                 ///< [n, H, I] float8_e4m3fn, dense.
  TensorView w2_scale{};                           ///< [n, H / 128, ceil(I / 128)].
  W13Layout w13_layout = W13Layout::kUnspecified;  ///< Also the order of w13_scale's halves. Of shared experts too.
  ScaleFormat scale_format = ScaleFormat::kUnspecified;
  // The shared experts, m = LayerConfig::num_shared_experts; absent where m is 0. Equal on all ranks.
  TensorView shared_w13{};        ///< [m, 2 * I, H], as w13.
  TensorView shared_w13_scale{};  ///< As w13_scale, m for n.
  TensorView shared_w2{};         ///< [m, H, I], as w2.
  TensorView shared_w2_scale{};   ///< As w2_scale, m for n.
};

/// One call on one rank. All views are caller-owned; with zero tokens their data may be null. They lie where the
/// group's memory lies; on a GPU, rows of hidden_states and output begin at multiples of 16 bytes.
struct ForwardArgs {
  TensorView hidden_states{};  ///< [T, H] bfloat16 (quantised here), or float8_e4m3fn with scales.
  /// [T, H / 128] for float8 tokens; strides tell row-major from group-major. Else absent.
  TensorView hidden_states_scale{};
  ScaleFormat scale_format = ScaleFormat::kUnspecified;  ///< Of hidden_states_scale; required with it.
  TensorView topk_ids{};      ///< [T, K] int32 or int64; -1 masks a slot. The same id twice counts twice.
  TensorView topk_weights{};  ///< [T, K] float32; never read where the id is -1.
  /// [T, H] bfloat16. A refused call leaves it as it was; after a timeout its contents are not defined.
  TensorView output{};
  uint64_t timeout_ns = 0;  ///< Overrides LayerConfig::timeout_ns where not 0.
  /// Overrides LayerConfig::swiglu_clamp; +inf: none. Must be > 0 and equal on all ranks: each applies its own to the
  /// rows of its experts.
  std::optional<float> swiglu_clamp{};

  TensorView shared_weights{};  ///< [T, m] float32: weights of the shared experts; absent: 1.
  /// [num_logical_experts] or [num_logical_experts, most copies] int32: physical experts in [0, num_experts). The
  /// copies of a logical expert end at its first -1; with none it is masked. Token t of rank r uses copy (t + r) mod
  /// copies. Read while the call runs: a call sees one map whole if it is not written meanwhile. Every rank routes by
  /// its own: maps with other contents are not an error. Required with num_logical_experts, else absent.
  TensorView expert_map{};
  /// Bit r % 64 of word r / 64: rank r takes part in this call; all zero: every rank. Equal on all ranks that take
  /// part. The others do not call; nobody waits for them or touches their memory, and slots of their experts are
  /// masked. A rank that was left out may take part again after reset().
  /// A call captured in a graph keeps the set that it was captured with, and its replays are not checked.
  std::array<uint64_t, 2> active_ranks{};
  /// Where slots of a token are masked by expert_map or by absent ranks, its other weights are scaled so that their sum
  /// is what it was: FP32, sums in slot order, weight * (sum of all / sum of the rest). Shared weights are left alone.
  bool renormalize_weights = false;
  /// [num_experts / ranks] int32 or int64, dense: the rows that this rank's experts received are added, once per call
  /// that is not refused; absent: none.
  TensorView cumulative_recv_counts{};

  /// Set (a cudaStream_t; null is the default stream): the call is only enqueued there; see MoeLayer::forward. Backend
  /// cuda only.
  std::optional<void*> cuda_stream{};
};

/// Where a caller may write E4M3 tokens itself, so that a call on them copies nothing: row t belongs to token t.
struct InputViews {
  TensorView codes{};   ///< [max_tokens_per_rank, H] float8_e4m3fn.
  TensorView scales{};  ///< [max_tokens_per_rank, H / 128] float32.
};

/// One region of the symmetric workspace.
struct RegionInfo {
  std::string name;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  std::string reach;  ///< "local", "peers write", "peers read".
};

/// One warp (or thread) role of a kernel.
struct RoleInfo {
  std::string role;
  uint32_t num_threads = 0;
  uint32_t registers = 0;  ///< Per thread; 0 on a CPU.
};

/// What a layer would allocate and run; made without allocating anything.
struct LayerPlan {
  std::string backend;
  std::string kernel;  ///< The kernel specification in one line: tiles, stages, formats.
  std::vector<RegionInfo> regions;
  uint64_t workspace_bytes = 0;  ///< Per rank, exactly what is allocated.
  std::vector<RoleInfo> roles;
  std::string schedule;  ///< The order of the tiles, in words.
  std::string choice;    ///< Why this kernel, and where the time of a full call should go; empty on a CPU.
  /// Of a call with max_tokens_per_rank tokens on every rank, each rank on a GPU of its own, uniform routing; 0:
  /// unknown.
  double predicted_us = 0;
  uint32_t block_rows = 0, token_ring_blocks = 0, act_ring_blocks = 0, unit_blocks = 0, lag_units = 0;
};

/// What the last forward call of this rank did; of calls on a stream, the last one before finish(). 0: not
/// measured; backend cuda measures the total of calls without a stream alone, since its roles overlap in one kernel
/// whose trace variant shows them.
struct ForwardReport {
  uint64_t total_ns = 0;
  uint64_t route_ns = 0;     ///< Sorting slots, exchanging headers.
  uint64_t quantize_ns = 0;  ///< Summed over workers, like the following.
  uint64_t pull_ns = 0;
  uint64_t l1_ns = 0;
  uint64_t l2_ns = 0;
  uint64_t combine_ns = 0;
  std::vector<uint32_t> rows_per_expert;  ///< Received by this rank's experts, shared ones left out.
};

/// Weights that were checked and made ready for one layer.
class PreparedWeights {
 public:
  virtual ~PreparedWeights() = default;
};

class MoeLayer {
 public:
  /// Checks a configuration and says what it would allocate. Needs no group and no GPU.
  static Result<LayerPlan> plan(const LayerConfig& config, uint32_t num_ranks);

  /// Collective: checks that all ranks were given the same configuration, allocates the workspace.
  /// @param group  this rank's membership; the layer keeps it
  /// Errors: kInvalidArgument, kNotSupported (before anything is allocated), kOutOfMemory, kTimeout, kPeerFailed.
  static Result<MoeLayer> create(const LayerConfig& config, std::shared_ptr<SymmetricMemory> group);

  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) noexcept;
  /// Collective, since nobody may unmap memory that a peer still uses: ranks that are threads of one process must end
  /// their layers at the same time. Waits at most 10 s for ranks that do not come.
  ~MoeLayer();

  /// Not collective. Checks shapes, dtypes, layouts and scales. May be called again between forward calls.
  /// Waits for calls in flight; a captured graph keeps the weights of its capture.
  Status load_weights(const ExpertWeights& weights);

  /// Not collective. Checks weights as load_weights does and makes them ready for use_weights: one layer then serves
  /// all layers of a model, with one workspace. The weights stay the caller's; the result serves this layer only, and
  /// must not end before the calls that use it, graphs included.
  Result<std::shared_ptr<const PreparedWeights>> prepare_weights(const ExpertWeights& weights);

  /// Not collective. Later calls of this rank use these weights; what is enqueued already, and captured graphs, keep
  /// theirs. Waits for nothing and looks at no memory, so that it may come between calls that are captured.
  Status use_weights(std::shared_ptr<const PreparedWeights> weights);

  /// Collective among the active ranks: y[t] = sum over slots of weight * expert(x[t]). Ranks may have different
  /// numbers of tokens, also none. Errors: a rank that is given wrong arguments makes the call fail on every rank with
  /// the same reason, nothing is written, and the next call works. kTimeout and kPeerFailed (a rank did not come, or
  /// died) leave the layer poisoned until reset().
  ///
  /// With ForwardArgs::cuda_stream the call is enqueued and forward returns at once: no wait for the GPU, no allocation
  /// on it, and the stream may be one that is captured into a graph, whose replays then are fresh calls. Tensors must
  /// stay as they are until the stream has passed the call. Arguments are checked on the host as far as that needs no
  /// look at GPU memory, and what is wrong with them is returned at once. What the GPU finds (ids out of range, another
  /// rank's refusal, a deadline) is kept until it has been returned: by the next forward that finds it, which enqueues
  /// its own call all the same, or by finish(). Later calls do not hide an earlier failure. Once a failure that poisons
  /// has been seen, nothing more is enqueued until reset().
  /// Calls of one layer run one after another on whatever streams they are enqueued; where graphs are replayed, that
  /// order is the caller's to keep.
  Status forward(const ForwardArgs& args);

  /// Not collective. Waits for the last call that was enqueued, and returns the first failure of enqueued calls that no
  /// call has returned yet. Replays of a graph must have been waited for by the caller: the layer cannot see them.
  /// Without calls on streams it has nothing to wait for.
  Status finish();

  /// For calls without copies: fill the first T rows (in the order of the stream), then pass dense views of them as
  /// hidden_states and hidden_states_scale. They live as long as the layer. A call that is given other tokens
  /// overwrites them.
  InputViews input_views() const;

  /// Collective, also for ranks that were left out of calls: makes a poisoned layer usable again, and lets every rank
  /// take part again. Waits for this rank's calls.
  Status reset();

  const LayerPlan& plan() const;
  const ForwardReport& last_report() const;

 private:
  class Impl;
  explicit MoeLayer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megamoe
