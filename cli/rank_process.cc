// Every step that can fail on one rank alone ends with all ranks telling each other, so that none waits for a rank that
// has given up.
#include "cli/rank_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "api/machine.h"
#include "api/tensor_store.h"
#include "cli/layer_data.h"
#include "cli/progress.h"
#include "cli/rank_layer.h"
#include "cli/run_finish.h"
#include "cli/stopwatch.h"

namespace megamoe::cli {
namespace {

/// How long a rank that was given wrong options waits for the others, to tell them.
constexpr uint64_t kRefusalTimeoutNs = 5'000'000'000;
/// Output rows go to rank 0 in pieces of this size, so that the memory for them stays small.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

/// Collective: where one rank cannot go on, all return its status.
Status all_go_on(SymmetricMemory& group, const Status& mine, std::string_view what, uint64_t timeout_ns) {
  const std::string text = mine.ok() ? "" : static_cast<char>(mine.code()) + mine.message();
  auto all = group.all_gather(text, what, timeout_ns);
  if (!mine.ok()) return mine;
  if (!all.ok()) return all.status();
  for (uint32_t rank = 0; rank < group.num_ranks(); ++rank) {
    const std::string& theirs = all.value()[rank];
    if (theirs.empty()) continue;
    const auto code = static_cast<uint8_t>(theirs[0]) <= static_cast<uint8_t>(Code::kInternal)
                          ? static_cast<Code>(theirs[0])
                          : Code::kInternal;
    return {code, fmt::format("megamoe run: no rank may go on alone, {} has stopped: {}", group.describe(rank),
                              theirs.substr(1))};
  }
  return {};
}

/// The options that must be the same on all ranks, as they were given.
std::string shared_options(const Arguments& arguments) {
  std::string text;
  for (const auto& [name, value] : arguments.values) {
    if (name == "threads" || name == "output" || name == "ranks" || name == "processes") continue;
    text += fmt::format("{}--{} {}", text.empty() ? "" : " ", name, value);
  }
  return text;
}

/// Collective: refuses options that differ between ranks.
Status agree_on_options(SymmetricMemory& group, const Arguments& arguments, uint64_t timeout_ns) {
  auto all = group.all_gather(shared_options(arguments), "comparison of options", timeout_ns);
  if (!all.ok()) return all.status();
  for (uint32_t rank = 1; rank < group.num_ranks(); ++rank) {
    if (all.value()[rank] == all.value()[0]) continue;
    return {Code::kInvalidArgument,
            fmt::format("megamoe run: all ranks must be given the same options, got \"{}\" on rank 0 and \"{}\" on "
                        "rank {}; start all ranks with one command line",
                        all.value()[0], all.value()[rank], rank)};
  }
  return {};
}

/// What a rank tells rank 0 about its part, before the rows of its experts and its notes.
struct RankFigures {
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  RunTimes times;
  uint64_t num_experts = 0;
};
static_assert(std::is_trivially_copyable_v<RankFigures>);

std::string encode(const RankFigures& figures, const std::vector<uint32_t>& rows,
                   const std::vector<std::string>& notes) {
  std::string text(sizeof(RankFigures) + rows.size() * sizeof(uint32_t), '\0');
  std::memcpy(text.data(), &figures, sizeof(RankFigures));
  std::memcpy(text.data() + sizeof(RankFigures), rows.data(), rows.size() * sizeof(uint32_t));
  return text + fmt::format("{}", fmt::join(notes, "\n"));
}

/// Adds one rank's contribution to the report.
Status add_rank(const std::string& text, RunReport& report, RankFigures& figures) {
  const Status malformed(Code::kPeerFailed,
                         "megamoe run: every rank must send its figures whole, got another size; run "
                         "the same megamoe on all ranks");
  if (text.size() < sizeof(RankFigures)) return malformed;
  std::memcpy(&figures, text.data(), sizeof(RankFigures));
  const size_t rows_bytes = figures.num_experts * sizeof(uint32_t);
  if (figures.num_experts > report.shape.num_experts || text.size() < sizeof(RankFigures) + rows_bytes)
    return malformed;
  std::vector<uint32_t> rows(figures.num_experts);
  std::memcpy(rows.data(), text.data() + sizeof(RankFigures), rows_bytes);
  report.rows_per_expert.insert(report.rows_per_expert.end(), rows.begin(), rows.end());
  std::vector<std::string> notes;
  for (size_t begin = sizeof(RankFigures) + rows_bytes; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    notes.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  add_notes(notes, report);
  report.times.add_stages(figures.times);
  return {};
}

/// Collective: the figures of all ranks, into rank 0's report.
Status gather_figures(SymmetricMemory& group, const std::string& mine, uint64_t timeout_ns, RunReport& report) {
  auto all = group.all_gather(mine, "figures of the run", timeout_ns);
  if (!all.ok()) return all.status();
  if (group.rank() != 0) return {};
  uint64_t start_ns = UINT64_MAX;
  uint64_t end_ns = 0;
  for (const std::string& text : all.value()) {
    RankFigures figures;
    MEGAMOE_RETURN_IF_ERROR(add_rank(text, report, figures));
    start_ns = std::min(start_ns, figures.start_ns);
    end_ns = std::max(end_ns, figures.end_ns);
  }
  report.times.forward_ns = end_ns - start_ns;
  return {};
}

/// Collective: the rows of all ranks; on rank 0 the result holds them in order, elsewhere nothing.
Result<io::Buffer<uint16_t>> gather_rows(SymmetricMemory& group, const LayerData& data,
                                         const io::Buffer<uint16_t>& mine, uint64_t timeout_ns) {
  io::Buffer<uint16_t> rows;
  Status ready;
  if (group.rank() == 0) {
    auto allocated =
        io::Buffer<uint16_t>::allocate(data.tokens_before(data.num_ranks()) * data.shape.hidden, "the output rows");
    ready = allocated.status();
    if (allocated.ok()) rows = std::move(allocated).value();
  }
  MEGAMOE_RETURN_IF_ERROR(all_go_on(group, ready, "memory for the output", timeout_ns));
  const auto row_bytes = uint64_t{data.shape.hidden} * sizeof(uint16_t);
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size_bytes());
  for (uint64_t begin = 0; begin < data.most_tokens() * row_bytes; begin += kPieceBytes) {
    auto all = group.all_gather(bytes.substr(std::min(begin, bytes.size()), kPieceBytes), "output rows", timeout_ns);
    if (!all.ok()) return all.status();
    if (group.rank() != 0) continue;
    for (uint32_t rank = 0; rank < group.num_ranks(); ++rank) {
      const std::string& piece = all.value()[rank];
      const uint64_t rank_bytes = data.tokens_per_rank[rank] * row_bytes;
      if (piece.size() != std::min(rank_bytes - std::min(begin, rank_bytes), kPieceBytes)) {
        return Status(Code::kPeerFailed,
                      "megamoe run: every rank must send its rows whole, got another size; run the "
                      "same megamoe on all ranks");
      }
      char* const first = reinterpret_cast<char*>(rows.data()) + data.tokens_before(rank) * row_bytes;
      std::copy(piece.begin(), piece.end(), first + begin);
    }
  }
  return rows;
}

/// Collective: creates the layer, makes one call, brings everything to rank 0.
Result<io::Buffer<uint16_t>> run_layer(const std::shared_ptr<SymmetricMemory>& group, const LayerData& data,
                                       const RunOptions& options, RunReport& report) {
  const uint64_t timeout_ns = options.execution.timeout_ns;
  const uint32_t num_tokens = data.tokens_per_rank[group->rank()];
  Stopwatch watch;
  auto output = io::Buffer<uint16_t>::allocate(uint64_t{num_tokens} * data.shape.hidden, "this rank's output rows");
  MEGAMOE_RETURN_IF_ERROR(all_go_on(*group, output.status(), "memory for this rank's output", timeout_ns));
  auto store = api::TensorStore::create(options.execution.backend, group->device_index());
  MEGAMOE_RETURN_IF_ERROR(all_go_on(*group, store.status(), "memory for tensors", timeout_ns));
  auto layer = MoeLayer::create(
      layer_config(options.execution, data.shape, data.clamp, data.most_tokens(), data.shared.num_experts), group);
  if (!layer.ok()) return layer.status();
  ExpertWeights weights = weights_view(data.weights.front(), data.shared);
  Status loaded = store->place({&weights.w13, &weights.w13_scale, &weights.w2, &weights.w2_scale, &weights.shared_w13,
                                &weights.shared_w13_scale, &weights.shared_w2, &weights.shared_w2_scale});
  if (loaded.ok()) loaded = layer->load_weights(weights);
  ForwardArgs args = forward_args(data.inputs, 0, num_tokens, output->span());
  if (loaded.ok()) loaded = store->place({&args.hidden_states, &args.topk_ids, &args.topk_weights, &args.output});
  MEGAMOE_RETURN_IF_ERROR(all_go_on(*group, loaded, "weights of the layer", timeout_ns));
  report.times.create_ns = watch.lap_ns();

  RankFigures figures;
  {
    const Progress progress("running the layer", 0);
    figures.start_ns = steady_ns();
    MEGAMOE_RETURN_IF_ERROR(layer->forward(args));
    figures.end_ns = steady_ns();
  }
  MEGAMOE_RETURN_IF_ERROR(all_go_on(*group, store->fetch(args.output), "copy of the output", timeout_ns));
  const ForwardReport mine = layer->last_report();
  figures.times.add_stages(mine);
  figures.num_experts = mine.rows_per_expert.size();
  if (data.shared_inputs) {
    auto second = io::Buffer<uint16_t>::allocate(output->size(), "the rows of the shared experts");
    MEGAMOE_RETURN_IF_ERROR(all_go_on(*group, second.status(), "memory for the shared experts' rows", timeout_ns));
    ForwardArgs shared = forward_args(*data.shared_inputs, 0, num_tokens, second->span());
    const Status placed = store->place({&shared.hidden_states, &shared.topk_ids, &shared.topk_weights, &shared.output});
    MEGAMOE_RETURN_IF_ERROR(all_go_on(*group, placed, "memory for the shared experts' call", timeout_ns));
    MEGAMOE_RETURN_IF_ERROR(layer->forward(shared));
    figures.end_ns = steady_ns();
    MEGAMOE_RETURN_IF_ERROR(all_go_on(*group, store->fetch(shared.output), "copy of the shared rows", timeout_ns));
    figures.times.add_stages(layer->last_report());
    add_rows(second->span(), output->span());
  }
  report.plan = layer->plan();
  report.simd = report.plan.backend == "cpu" ? std::string(api::simd_level()) : "none";
  const std::string text = encode(figures, mine.rows_per_expert, data.weights.front().notes);
  MEGAMOE_RETURN_IF_ERROR(gather_figures(*group, text, timeout_ns, report));
  return gather_rows(*group, data, output.value(), timeout_ns);
}

/// A rank whose options cannot be read joins like the others, to tell them: on the CPU, where it does not know better.
Result<std::shared_ptr<SymmetricMemory>> join(const Result<RunOptions>& options, const ProcessGroupOptions& group) {
  if (!options.ok() || options->execution.backend != "cuda") return join_process_group(group);
  auto devices = rank_devices(options->execution);
  if (!devices.ok()) return devices.status();
  return join_cuda_process_group(group, devices.value()[group.rank]);
}

}  // namespace

Result<Verdict> run_rank_process(const Arguments& arguments, const Result<RunOptions>& options,
                                 ProcessGroupOptions group) {
  const uint64_t timeout_ns = options.ok() ? options->execution.timeout_ns : kRefusalTimeoutNs;
  group.timeout_ns = timeout_ns;
  auto joined = join(options, group);
  if (!joined.ok()) return options.ok() ? joined.status() : options.status();
  std::shared_ptr<SymmetricMemory> member = std::move(joined).value();
  MEGAMOE_RETURN_IF_ERROR(all_go_on(*member, options.status(), "reading of options", timeout_ns));
  MEGAMOE_RETURN_IF_ERROR(agree_on_options(*member, arguments, timeout_ns));

  Stopwatch watch;
  auto data = load_layer(options.value(), {group.rank, group.rank + 1});
  MEGAMOE_RETURN_IF_ERROR(all_go_on(*member, data.status(), "loading of the layer", timeout_ns));
  RunReport report = begin_report(data.value(), member->transport());
  report.times.load_ns = watch.lap_ns();
  auto output = run_layer(member, data.value(), options.value(), report);
  member.reset();
  if (!output.ok()) return output.status();
  if (group.rank != 0) return Verdict::kOk;
  return finish_run(arguments, options.value(), std::move(data).value(), std::move(report), output.value());
}

}  // namespace megamoe::cli
