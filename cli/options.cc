// From words to checked values; every refusal says which option, what it must be, and what it was.
#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "cli/numbers.h"
#include "io/text.h"
#include "megamoe/shape.h"

namespace megamoe::cli {
namespace {

constexpr uint64_t kMaxTokens = 1 << 20;
constexpr uint64_t kMaxTimeoutMs = 86'400'000;
constexpr uint64_t kMaxLayer = 100'000;

/// Reads options of one command; remembers the first error.
class Reader {
 public:
  explicit Reader(const Arguments& arguments) : arguments_(arguments) {}

  const Status& status() const { return status_; }
  bool has(const char* name) const { return arguments_.has(name); }
  std::string text(const char* name) const { return arguments_.get(name); }
  std::string where(const char* name) const { return fmt::format("megamoe {} --{}", arguments_.command, name); }

  template <class T>
  void whole(const char* name, const char* noun, uint64_t min, uint64_t max, T& value) {
    if (!has(name)) return;
    auto parsed = parse_whole(text(name), {where(name), noun, min, max});
    if (keep(parsed.status())) value = static_cast<T>(parsed.value());
  }

  void wholes(const char* name, const char* noun, uint64_t max, size_t max_count, std::vector<uint32_t>& values) {
    if (!has(name)) return;
    auto parsed = parse_wholes(text(name), {where(name), noun, 0, max}, max_count);
    if (keep(parsed.status())) values = std::move(parsed).value();
  }

  /// A path must not be empty.
  void path(const char* name, std::string& value) {
    if (!has(name)) return;
    value = text(name);
    if (value.empty()) fail(name, "a name must be given", "nothing", "give a file, folder or tensor name");
  }

  void refuse(const char* name, std::string_view reason, std::string_view advice) {
    if (has(name)) fail(name, reason, fmt::format("'{}'", io::printable(text(name), 40)), advice);
  }

  void require(const char* name, std::string_view reason, std::string_view advice) {
    if (!has(name)) fail(name, reason, "nothing", advice);
  }

  void fail(const char* name, std::string_view must, std::string_view got, std::string_view advice) {
    keep({Code::kInvalidArgument, fmt::format("{}: {}, got {}; {}", where(name), must, got, advice)});
  }

  /// False, and remembered, where `status` is an error.
  bool keep(const Status& status) {
    if (status_.ok()) status_ = status;
    return status.ok();
  }

 private:
  const Arguments& arguments_;
  Status status_;
};

void read_layer(Reader& reader, LayerChoice& layer) {
  const bool has_model = reader.has("model");
  const bool has_checkpoint = reader.has("checkpoint");
  if (has_model == has_checkpoint) {
    reader.fail("model", "exactly one of --model NAME and --checkpoint DIR must be given",
                has_model ? "both" : "neither", "megamoe models lists the names");
    return;
  }
  if (has_model) {
    auto preset = api::find_model(reader.text("model"));
    if (reader.keep(preset.status())) layer.model = preset.value();
    reader.refuse("layer", "a layer number belongs to --checkpoint", "leave it out, or give --checkpoint");
  } else {
    reader.path("checkpoint", layer.checkpoint);
    reader.whole("layer", "the layer", 0, kMaxLayer, layer.layer);
  }
}

void read_execution(Reader& reader, Execution& execution) {
  reader.whole("ranks", "ranks", 1, kMaxRanks, execution.num_ranks);
  reader.whole("block-rows", "block rows", 0, 65'536, execution.block_rows);
  reader.whole("threads", "threads", 0, 1024, execution.num_threads);
  if (reader.has("timeout-ms")) {
    uint64_t timeout_ms = 0;
    reader.whole("timeout-ms", "milliseconds", 1, kMaxTimeoutMs, timeout_ms);
    execution.timeout_ns = timeout_ms * 1'000'000;
  }
  if (reader.has("device")) {
    execution.backend = reader.text("device");
    if (execution.backend != "cpu" && execution.backend != "cuda") {
      reader.fail("device", "the device must be cpu or cuda", fmt::format("'{}'", io::printable(execution.backend, 40)),
                  "choose one of them");
    }
  }
  reader.wholes("gpus", "GPUs", 1023, kMaxRanks, execution.gpus);
  if (execution.backend != "cuda") {
    reader.refuse("gpus", "GPUs belong to --device cuda", "leave it out, or give --device cuda");
  }
}

Routing parse_routing(Reader& reader, const std::string& text) {
  Routing routing;
  routing.text = text;
  constexpr std::string_view kZipfPrefix = "zipf:";
  if (routing.text == "uniform") {
    routing.kind = Routing::Kind::kUniform;
  } else if (routing.text == "one-expert") {
    routing.kind = Routing::Kind::kOneExpert;
  } else if (routing.text == "one-rank") {
    routing.kind = Routing::Kind::kOneRank;
  } else if (routing.text == "hot") {
    routing.kind = Routing::Kind::kHot;
  } else if (routing.text.starts_with(kZipfPrefix)) {
    routing.kind = Routing::Kind::kZipf;
    auto exponent = parse_real(std::string_view(routing.text).substr(kZipfPrefix.size()), reader.where("routing"),
                               "the exponent of zipf", 0, 10);
    if (reader.keep(exponent.status())) routing.exponent = exponent.value();
  } else {
    reader.fail("routing", "routing must be uniform, zipf:S, hot, one-expert or one-rank",
                fmt::format("'{}'", io::printable(routing.text, 40)), "choose one of them, for example zipf:1.1");
  }
  return routing;
}

void read_routing(Reader& reader, Routing& routing) {
  if (reader.has("routing")) routing = parse_routing(reader, reader.text("routing"));
}

/// The words of an option between commas; those of `fallback` where it was not given.
std::vector<std::string> words_of(const Reader& reader, const char* name, std::string_view fallback) {
  std::vector<std::string> words;
  const std::string text = reader.has(name) ? reader.text(name) : std::string(fallback);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// @param values  all that a word can name, by their name()
template <class T>
void read_names(Reader& reader, const char* option, std::initializer_list<T> values, std::vector<T>& chosen) {
  if (!reader.has(option)) return;
  chosen.clear();
  for (const std::string& word : words_of(reader, option, "")) {
    const auto* const found =
        std::find_if(values.begin(), values.end(), [&](T value) { return bench::name(value) == word; });
    if (found != values.end()) {
      chosen.push_back(*found);
      continue;
    }
    std::string known;
    for (const T value : values) known += fmt::format("{}{}", known.empty() ? "" : ", ", bench::name(value));
    reader.fail(option, fmt::format("each word must be one of {}", known), fmt::format("'{}'", io::printable(word, 40)),
                "separate several by commas");
  }
}

void read_gpu_bench(Reader& reader, GpuBenchChoice& gpu) {
  for (const std::string& name : words_of(reader, "model", "flash-slice")) {
    auto preset = api::find_model(name);
    if (reader.keep(preset.status())) gpu.models.push_back(preset.value());
  }
  gpu.routings.clear();
  for (const std::string& text : words_of(reader, "routing", "uniform"))
    gpu.routings.push_back(parse_routing(reader, text));
  read_names(reader, "input", {bench::TokenInput::kFp8, bench::TokenInput::kBf16}, gpu.inputs);
  read_names(reader, "protocol", {bench::Protocol::kCold, bench::Protocol::kSteady}, gpu.protocols);
  reader.path("append", gpu.append);
}

/// The experts of a model whose number is that of each rank.
void spread_experts(api::ModelPreset& model, uint32_t num_ranks) {
  if (model.per_rank) model.shape.num_experts *= num_ranks;
}

void read_random(Reader& reader, RandomChoice& random, size_t max_counts) {
  reader.wholes("tokens", "tokens", kMaxTokens, max_counts, random.tokens);
  reader.whole("seed", "the seed", 0, std::numeric_limits<uint64_t>::max(), random.seed);
  read_routing(reader, random.routing);
}

void read_check(Reader& reader, CheckChoice& check) {
  if (!reader.has("check")) return;
  const std::string text = reader.text("check");
  constexpr std::string_view kRowsPrefix = "rows:";
  if (text == "all") {
    check.kind = CheckChoice::Kind::kAll;
  } else if (text == "none") {
    check.kind = CheckChoice::Kind::kNone;
  } else if (text.starts_with(kRowsPrefix)) {
    check.kind = CheckChoice::Kind::kRows;
    auto rows = parse_whole(std::string_view(text).substr(kRowsPrefix.size()),
                            {reader.where("check"), "rows", 1, uint64_t{kMaxRanks} * kMaxTokens});
    if (reader.keep(rows.status())) check.num_rows = rows.value();
  } else {
    reader.fail("check", "check must be all, rows:N or none", fmt::format("'{}'", io::printable(text, 40)),
                "choose one of them, for example rows:64");
  }
}

void read_part(Reader& reader, BlockPart& part) {
  if (!reader.has("part")) return;
  const std::string text = reader.text("part");
  if (text == "block") {
    part = BlockPart::kBlock;
  } else if (text == "routed") {
    part = BlockPart::kRouted;
  } else if (text != "auto") {
    reader.fail("part", "the part must be auto, block or routed", fmt::format("'{}'", io::printable(text, 40)),
                "choose one of them");
  }
}

/// Ranks as processes: those that --processes asks for, or those that a launcher has started.
void read_processes(Reader& reader, std::optional<uint32_t> launched_ranks, Execution& execution) {
  execution.as_processes = reader.has("processes") || launched_ranks;
  if (!launched_ranks) return;
  if (reader.has("processes")) {
    reader.fail("processes", "it starts the ranks, so no launcher may have done that", "a rank of a launcher",
                "leave it out, or unset RANK, WORLD_SIZE and the other variables of torchrun and mpirun");
  }
  if (reader.has("ranks") && execution.num_ranks != *launched_ranks) {
    reader.fail("ranks", fmt::format("ranks must be the {} that the launcher has started", *launched_ranks),
                fmt::format("{}", execution.num_ranks), "leave it out");
  }
  execution.num_ranks = *launched_ranks;
}

void read_parts(Reader& reader, BenchOptions& options) {
  if (reader.has("only")) {
    const std::string part = reader.text("only");
    options.times_layer = part == "layer";
    options.times_gemm = part == "gemm";
    if (!options.times_layer && !options.times_gemm) {
      reader.fail("only", "the part must be layer or gemm", fmt::format("'{}'", io::printable(part, 40)),
                  "choose one of them, or leave it out for both");
    }
  }
  if (!reader.has("min-ratio")) return;
  auto ratio = parse_real(reader.text("min-ratio"), reader.where("min-ratio"), "the ratio", 0, 100);
  if (reader.keep(ratio.status())) options.min_ratio = ratio.value();
  if (!options.times_gemm) {
    reader.refuse("min-ratio", "the ratio belongs to the part gemm", "leave it out, or leave out --only layer");
  }
}

}  // namespace

Status check_ranks(std::string_view where, uint32_t num_experts, uint32_t num_ranks) {
  if (num_experts % num_ranks == 0) return {};
  std::string usable;
  for (uint32_t count = 1; count <= std::min(num_experts, kMaxRanks); ++count) {
    if (num_experts % count == 0) usable += fmt::format("{}{}", usable.empty() ? "" : ", ", count);
  }
  return {
      Code::kInvalidArgument,
      fmt::format("{} --ranks: ranks must divide the {} experts, since every rank owns equally many, got {}; usable "
                  "counts are {}",
                  where, num_experts, num_ranks, usable)};
}

Result<RunOptions> run_options(const Arguments& arguments, std::optional<uint32_t> launched_ranks) {
  Reader reader(arguments);
  RunOptions options;
  read_layer(reader, options.layer);
  if (options.layer.model) {
    for (const char* name : {"inputs", "compare"}) {
      reader.refuse(name, "a file of tokens belongs to --checkpoint, since --model makes random tokens",
                    "leave it out, or give --checkpoint");
    }
    reader.refuse("part", "a router and shared experts belong to --checkpoint", "leave it out, or give --checkpoint");
  } else {
    reader.require("layer", "a checkpoint needs the number of a layer", "give --layer N, counted from 0");
    reader.require("inputs", "a checkpoint needs tokens", "give --inputs FILE.safetensors with hidden_states");
    for (const char* name : {"tokens", "routing", "seed"}) {
      reader.refuse(name, "random tokens belong to --model, since --inputs holds the tokens here",
                    "leave it out, or give --model");
    }
  }
  reader.path("inputs", options.inputs);
  reader.path("compare", options.compare);
  read_part(reader, options.part);
  reader.path("output", options.output);
  read_execution(reader, options.execution);
  read_processes(reader, launched_ranks, options.execution);
  read_random(reader, options.random, kMaxRanks);
  read_check(reader, options.check);
  if (reader.status().ok() && options.random.tokens.size() > 1 &&
      options.random.tokens.size() != options.execution.num_ranks) {
    reader.fail("tokens",
                fmt::format("there must be one number, or one for each of the {} ranks", options.execution.num_ranks),
                fmt::format("{} numbers", options.random.tokens.size()), "give one of the two");
  }
  if (options.layer.model) spread_experts(*options.layer.model, options.execution.num_ranks);
  if (reader.status().ok() && options.layer.model) {
    reader.keep(check_ranks("megamoe run", options.layer.model->shape.num_experts, options.execution.num_ranks));
  }
  if (!reader.status().ok()) return reader.status();
  return options;
}

Result<InspectOptions> inspect_options(const Arguments& arguments) {
  Reader reader(arguments);
  InspectOptions options;
  reader.require("checkpoint", "a folder must be given", "megamoe inspect DIR");
  reader.path("checkpoint", options.folder);
  if (reader.has("layer")) reader.whole("layer", "the layer", 0, kMaxLayer, options.layer.emplace());
  if (!reader.status().ok()) return reader.status();
  return options;
}

Result<PlanOptions> plan_options(const Arguments& arguments) {
  Reader reader(arguments);
  PlanOptions options;
  read_layer(reader, options.layer);
  read_execution(reader, options.execution);
  if (options.layer.model) spread_experts(*options.layer.model, options.execution.num_ranks);
  reader.whole("tokens", "tokens", 1, kMaxTokens, options.max_tokens_per_rank);
  if (!reader.status().ok()) return reader.status();
  return options;
}

Result<BenchOptions> bench_options(const Arguments& arguments) {
  Reader reader(arguments);
  BenchOptions options;
  read_execution(reader, options.execution);
  reader.wholes("tokens", "tokens", kMaxTokens, 64, options.random.tokens);
  reader.whole("seed", "the seed", 0, std::numeric_limits<uint64_t>::max(), options.random.seed);
  read_parts(reader, options);
  if (options.execution.backend == "cuda") {
    read_gpu_bench(reader, options.gpu);
    options.num_repeats = 20;
    for (const char* name : {"only", "min-ratio", "threads"})
      reader.refuse(name, "it belongs to --device cpu", "leave it out");
    if (std::count(options.random.tokens.begin(), options.random.tokens.end(), 0U) != 0)
      reader.fail("tokens", "there must be at least one token", "0", "leave it out");
  } else {
    auto preset = api::find_model(reader.has("model") ? reader.text("model") : "tiny");
    if (reader.keep(preset.status())) options.gpu.models = {preset.value()};
    read_routing(reader, options.random.routing);
    for (const char* name : {"input", "protocol", "append"})
      reader.refuse(name, "it belongs to --device cuda", "leave it out");
  }
  reader.whole("repeat", "repeats", 1, 100'000, options.num_repeats);
  for (api::ModelPreset& model : options.gpu.models) {
    spread_experts(model, options.execution.num_ranks);
    if (reader.status().ok())
      reader.keep(check_ranks("megamoe bench", model.shape.num_experts, options.execution.num_ranks));
  }
  if (!options.gpu.models.empty()) options.model = options.gpu.models.front();
  if (!reader.status().ok()) return reader.status();
  return options;
}

LayerConfig layer_config(const Execution& execution, const MoeShape& shape, std::optional<float> clamp,
                         uint32_t max_tokens_per_rank, uint32_t num_shared_experts) {
  LayerConfig config;
  config.shape = shape;
  config.num_shared_experts = num_shared_experts;
  config.max_tokens_per_rank = std::max(max_tokens_per_rank, 1U);
  config.swiglu_clamp = clamp;
  config.timeout_ns = execution.timeout_ns;
  config.backend = execution.backend;
  config.num_threads = execution.num_threads;
  config.block_rows = execution.block_rows;
  return config;
}

}  // namespace megamoe::cli
