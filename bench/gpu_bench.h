// Times a layer on GPUs by two protocols, cold and steady. Builds without CUDA have only the sentence that says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/call_load.h"
#include "megamoe/moe_layer.h"

namespace megamoe::bench {

enum class Protocol : uint8_t {
  /// For each observation: fresh routing, L2 flushed, 100 ms without work, all ranks lined up by the GPU, one call. Its
  /// time is that of the rank that took longest.
  kCold,
  /// A CUDA graph of kSteadyCalls calls, each with its own routing, over kWeightSets sets of weights in turn, so that
  /// no
  /// weights stay in the L2; replayed without a pause. An observation is a replay, its time that of one call.
  kSteady,
};
inline constexpr uint32_t kSteadyCalls = 20;
inline constexpr uint32_t kWeightSets = 3;

/// How tokens are given.
enum class TokenInput : uint8_t {
  kFp8,   ///< E4M3 with FP32 scales in the layer's input views: nothing is copied.
  kBf16,  ///< BF16, quantised inside the call.
};

constexpr std::string_view name(Protocol protocol) { return protocol == Protocol::kCold ? "cold" : "steady"; }
constexpr std::string_view name(TokenInput input) { return input == TokenInput::kFp8 ? "fp8" : "bf16"; }

/// What is timed. Weights and tokens are random and are made on the GPUs.
struct Subject {
  LayerConfig config;         ///< max_tokens_per_rank is replaced by the tokens of each measurement.
  std::vector<int32_t> gpus;  ///< By rank; equal numbers share a GPU.
  uint32_t most_tokens = 1;   ///< Of a rank, in any measurement.
  uint64_t seed = 1;
};

struct Measurement {
  Protocol protocol = Protocol::kCold;
  TokenInput input = TokenInput::kFp8;
  uint32_t tokens_per_rank = 1;
  uint32_t num_observations = 20;
};

/// Fills ids[rank][token][slot]; `call` counts up, and each call has another routing.
using Route = std::function<void(uint64_t call, std::span<int32_t> ids)>;

struct Timing {
  std::vector<double> sorted_us;  ///< One an observation, ascending.
  CallLoad load;                  ///< Mean over the calls.
  LayerPlan plan;                 ///< What ran.
};

class GpuBench {
 public:
  /// Errors: kNotSupported in a build without CUDA, kOutOfMemory where the GPUs cannot hold it all.
  static Result<std::unique_ptr<GpuBench>> create(const Subject& subject);
  virtual ~GpuBench() = default;
  /// One warm-up, then the observations. A layer is made for each number of tokens, with that capacity.
  virtual Result<Timing> time(const Measurement& measurement, const Route& route) = 0;
  /// "NVIDIA H200, driver 580.159.04"
  virtual std::string hardware() const = 0;
};

}  // namespace megamoe::bench
