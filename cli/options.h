// What the commands are asked to do, after every number and word has been checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/models.h"
#include "bench/gpu_bench.h"
#include "cli/arguments.h"
#include "megamoe/moe_layer.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Which experts the slots of a token name.
struct Routing {
  enum class Kind : uint8_t {
    kUniform,    ///< top_k distinct experts, all equally likely.
    kZipf,       ///< top_k distinct experts; the n-th most popular has probability proportional to n^-exponent.
    kOneExpert,  ///< Every slot of every token names the same expert.
    kOneRank,    ///< Only experts of one rank.
    kHot,        ///< One expert for every token; the other slots as in kUniform.
  };
  Kind kind = Kind::kUniform;
  double exponent = 0;
  std::string text = "uniform";  ///< As given.
};

/// Either a preset or a checkpoint folder.
struct LayerChoice {
  std::optional<api::ModelPreset> model;
  std::string checkpoint;
  uint32_t layer = 0;
};

struct Execution {
  uint32_t num_ranks = 1;
  std::string backend = "cpu";
  uint32_t block_rows = 0;
  uint32_t num_threads = 0;
  uint64_t timeout_ns = kDefaultTimeoutNs;
  bool as_processes = false;
  std::vector<uint32_t> gpus;  ///< That the ranks use in turn; empty: all.
};

struct RandomChoice {
  std::vector<uint32_t> tokens = {16};
  Routing routing;
  uint64_t seed = 1;
};

/// How many rows are compared with the oracle.
struct CheckChoice {
  enum class Kind : uint8_t { kByWork, kAll, kRows, kNone };
  Kind kind = Kind::kByWork;
  uint64_t num_rows = 0;
};

/// How much of a checkpoint's MoE block is run.
enum class BlockPart : uint8_t {
  kAuto = 0,  ///< The whole, unless the file of tokens brings a routing and does not ask for the whole's output.
  kBlock,     ///< Router, routed and shared experts.
  kRouted,    ///< The routed experts, with the routing of the file.
};

struct RunOptions {
  LayerChoice layer;
  BlockPart part = BlockPart::kAuto;
  std::string inputs, compare, output;
  Execution execution;
  RandomChoice random;
  CheckChoice check;
};

struct InspectOptions {
  std::string folder;
  std::optional<uint32_t> layer;
};

struct PlanOptions {
  LayerChoice layer;
  Execution execution;
  uint32_t max_tokens_per_rank = 16;
};

/// What is timed on a GPU: every combination.
struct GpuBenchChoice {
  std::vector<api::ModelPreset> models;
  std::vector<Routing> routings = {Routing{}};
  std::vector<bench::TokenInput> inputs = {bench::TokenInput::kFp8, bench::TokenInput::kBf16};
  std::vector<bench::Protocol> protocols = {bench::Protocol::kCold, bench::Protocol::kSteady};
  std::string append;  ///< File that gets a line for each figure; empty: none.
};

struct BenchOptions {
  api::ModelPreset model;  ///< Of the CPU's part.
  GpuBenchChoice gpu;
  Execution execution;
  RandomChoice random;
  uint32_t num_repeats = 10;  ///< On a GPU observations, 20 where not given.
  bool times_layer = true;
  bool times_gemm = true;
  std::optional<double> min_ratio;  ///< Of the GEMM to OpenBLAS; nothing: any will do.
};

/// @param launched_ranks  the ranks of the launcher that started this process, where there is one
Result<RunOptions> run_options(const Arguments& arguments, std::optional<uint32_t> launched_ranks);
Result<InspectOptions> inspect_options(const Arguments& arguments);
Result<PlanOptions> plan_options(const Arguments& arguments);
Result<BenchOptions> bench_options(const Arguments& arguments);

/// kInvalidArgument with the usable counts where the experts cannot be shared evenly.
Status check_ranks(std::string_view where, uint32_t num_experts, uint32_t num_ranks);

/// The library's configuration for this choice.
LayerConfig layer_config(const Execution& execution, const MoeShape& shape, std::optional<float> clamp,
                         uint32_t max_tokens_per_rank, uint32_t num_shared_experts = 0);

}  // namespace megamoe::cli
