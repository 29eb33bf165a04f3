// What must hold for calls on streams: several in flight, captured in a graph, refused or cut short in the middle.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "device/checks.h"
#include "device/rig.h"
#include "support/layer_group.h"

namespace megamoe::device_check {
namespace {

using test::LayerGroup;
using test::TestTokens;
using test::TestWeights;

constexpr MoeShape kShape{512, 384, 8, 3};
constexpr uint32_t kRanks = 2;
constexpr int64_t kTokens = 20;

LayerConfig config(uint64_t timeout_ns) {
  LayerConfig config = test::small_config(kShape, 32);
  config.backend = "cuda";
  config.timeout_ns = timeout_ns;
  return config;
}

/// One rank's tensors on the GPU, and its stream.
class StreamRank {
 public:
  explicit StreamRank(const TestTokens& tokens)
      : hidden_(tokens.hidden.data(), tokens.hidden.size() * 2),
        ids_(tokens.topk_ids.data(), tokens.topk_ids.size() * 8),
        weights_(tokens.topk_weights.data(), tokens.topk_weights.size() * 4),
        good_id_(tokens.topk_ids[kBadSlot]) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  }
  ~StreamRank() { cudaStreamDestroy(stream_); }
  StreamRank(const StreamRank&) = delete;
  StreamRank& operator=(const StreamRank&) = delete;

  ForwardArgs args(const DeviceBuffer& output) const {
    const int64_t h = kShape.hidden, k = kShape.top_k;
    ForwardArgs args;
    args.hidden_states = TensorView::dense(hidden_.data(), DType::kBFloat16, {kTokens, h});
    args.topk_ids = TensorView::dense(ids_.data(), DType::kInt64, {kTokens, k});
    args.topk_weights = TensorView::dense(weights_.data(), DType::kFloat32, {kTokens, k});
    args.output = TensorView::dense(output.data(), DType::kBFloat16, {kTokens, h});
    for (TensorView* view : {&args.hidden_states, &args.topk_ids, &args.topk_weights, &args.output})
      view->device = Device::kCuda;
    args.cuda_stream = stream_;
    return args;
  }
  /// In the order of the stream: what the GPU reads from then on.
  void set_id(bool good) {
    static const int64_t kBad = 99;
    check_cuda(cudaMemcpyAsync(static_cast<int64_t*>(ids_.data()) + kBadSlot, good ? &good_id_ : &kBad, 8,
                               cudaMemcpyHostToDevice, stream_),
               "id");
  }
  cudaStream_t stream() const { return stream_; }

 private:
  static constexpr uint32_t kBadSlot = 7;
  DeviceBuffer hidden_, ids_, weights_;
  const int64_t good_id_;
  cudaStream_t stream_ = nullptr;
};

/// A layer on two ranks that share the GPU, and what a plain call gives.
struct StreamRig {
  explicit StreamRig(uint64_t timeout_ns = 20'000'000'000) : group(config(timeout_ns), kRanks, weights) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) ranks.push_back(std::make_unique<StreamRank>(tokens[rank]));
    if (created().ok())
      for (const test::RankOutput& output : group.forward(tokens)) want.push_back(output.rows);
  }
  Status created() const {
    for (const Status& status : group.created())
      if (!status.ok()) return status;
    return {};
  }
  static DeviceBuffer poisoned_output() {
    DeviceBuffer output(kTokens * kShape.hidden * 2);
    output.fill(0xff);
    return output;
  }
  bool is_right(uint32_t rank, const DeviceBuffer& output) const {
    std::vector<uint16_t> rows(want[rank].size());
    output.fetch(rows.data(), rows.size() * 2);
    return rows == want[rank];
  }
  static bool is_untouched(const DeviceBuffer& output) {
    std::vector<uint16_t> rows(output.bytes() / 2);
    output.fetch(rows.data(), output.bytes());
    return std::all_of(rows.begin(), rows.end(), [](uint16_t element) { return element == 0xffff; });
  }

  TestWeights weights = test::gen_weights(kShape, 41);
  std::vector<TestTokens> tokens = {test::gen_tokens(kShape, kTokens, 42), test::gen_tokens(kShape, kTokens, 43)};
  LayerGroup group;
  std::vector<std::unique_ptr<StreamRank>> ranks;
  std::vector<std::vector<uint16_t>> want;
};

Status no(const std::string& what) { return {Code::kInternal, what}; }

Status first_error(const std::vector<Status>& statuses) {
  for (const Status& status : statuses)
    if (!status.ok()) return status;
  return {};
}

/// The one failure that a rank must have been told of when `bad_rank` gave an id out of range in one call of several.
Status expect_one_refusal(const std::vector<Status>& told, uint32_t rank, uint32_t bad_rank) {
  const Status* failure = nullptr;
  for (const Status& status : told) {
    if (status.ok()) continue;
    if (failure != nullptr) return no("told twice: " + status.message());
    failure = &status;
  }
  if (failure == nullptr) return no("the refusal of one call in the middle was lost");
  const bool right = failure->code() == (rank == bad_rank ? Code::kInvalidArgument : Code::kPeerFailed) &&
                     failure->message().find("got 99 at rank 1, token 2, slot 1") != std::string::npos;
  return right ? Status{} : no("told: " + failure->message());
}

/// Six calls on every rank's stream without a wait; in the third, rank 1 has an id out of range.
Outcome calls_in_flight() {
  StreamRig rig;
  if (!rig.created().ok()) return {false, rig.created().message()};
  constexpr int kCalls = 6, kBadCall = 2;
  for (const bool with_bad_call : {false, true, false}) {
    // Allocating and freeing wait for the whole GPU, so not while a rank's call waits for another's.
    std::vector<DeviceBuffer> outputs[kRanks];
    for (auto& of_rank : outputs)
      for (int call = 0; call < kCalls; ++call) of_rank.push_back(StreamRig::poisoned_output());
    const Status status = first_error(test::on_each_rank(kRanks, [&](uint32_t rank) -> Status {
      StreamRank& mine = *rig.ranks[rank];
      MoeLayer& layer = rig.group.layer(rank);
      std::vector<Status> told;
      for (int call = 0; call < kCalls; ++call) {
        if (with_bad_call && rank == 1) mine.set_id(call != kBadCall);
        told.push_back(layer.forward(mine.args(outputs[rank][call])));
      }
      told.push_back(layer.finish());
      MEGAMOE_RETURN_IF_ERROR(layer.finish());
      MEGAMOE_RETURN_IF_ERROR(with_bad_call ? expect_one_refusal(told, rank, 1) : first_error(told));
      for (int call = 0; call < kCalls; ++call) {
        const DeviceBuffer& output = outputs[rank][call];
        const bool is_bad = with_bad_call && call == kBadCall;
        if (is_bad ? !StreamRig::is_untouched(output) : !rig.is_right(rank, output))
          return no(fmt::format("rank {}, call {}: other bits than a plain call", rank, call));
      }
      return {};
    }));
    if (!status.ok()) return {false, status.message()};
  }
  return {true,
          "18 calls on 2 ranks, the same bits as plain calls; the refusal of one in the middle told once on each rank"};
}

struct Graph {
  Graph(MoeLayer& layer, const StreamRank& rank) {
    check_cuda(cudaStreamBeginCapture(rank.stream(), cudaStreamCaptureModeGlobal), "capture");
    captured = layer.forward(rank.args(output));
    check_cuda(cudaStreamEndCapture(rank.stream(), &graph), "capture");
    if (captured.ok()) check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  }
  ~Graph() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const DeviceBuffer output = StreamRig::poisoned_output();
  Status captured;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

/// One call captured on every rank and replayed; in one replay, rank 1 has an id out of range.
Outcome graph() {
  StreamRig rig;
  if (!rig.created().ok()) return {false, rig.created().message()};
  constexpr int kReplays = 20, kBadReplay = 11;
  std::vector<std::unique_ptr<Graph>> graphs;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    graphs.push_back(std::make_unique<Graph>(rig.group.layer(rank), *rig.ranks[rank]));
    if (!graphs[rank]->captured.ok()) return {false, "capture: " + graphs[rank]->captured.message()};
  }
  const Status status = first_error(test::on_each_rank(kRanks, [&](uint32_t rank) -> Status {
    StreamRank& mine = *rig.ranks[rank];
    MoeLayer& layer = rig.group.layer(rank);
    const Graph& graph = *graphs[rank];
    for (int replay = 0; replay < kReplays; ++replay) {
      check_cuda(cudaMemsetAsync(graph.output.data(), 0xff, graph.output.bytes(), mine.stream()), "memset");
      if (rank == 1) mine.set_id(replay != kBadReplay);
      check_cuda(cudaGraphLaunch(graph.executable, mine.stream()), "replay");
      if (replay > kBadReplay && replay + 1 < kReplays) continue;
      check_cuda(cudaStreamSynchronize(mine.stream()), "replay");
      const bool is_bad = replay == kBadReplay;
      if (is_bad ? !StreamRig::is_untouched(graph.output) : !rig.is_right(rank, graph.output))
        return no(fmt::format("rank {}, replay {}: other bits than a plain call", rank, replay));
      if (replay < kBadReplay) MEGAMOE_RETURN_IF_ERROR(layer.finish());
    }
    return expect_one_refusal({layer.finish(), layer.finish()}, rank, 1);
  }));
  return {status.ok(), status.ok() ? "20 replays on 2 ranks, the same bits as plain calls; the one with an id out of "
                                     "range told by finish() after 8 good ones"
                                   : status.message()};
}

/// Rank 1 stays away from the second of three calls of rank 0: told once with its reason, then as poisoned until reset.
Outcome cut_short() {
  StreamRig rig(1'000'000'000);
  if (!rig.created().ok()) return {false, rig.created().message()};
  StreamRank& mine = *rig.ranks[0];
  MoeLayer& layer = rig.group.layer(0);
  std::vector<DeviceBuffer> outputs;
  for (int i = 0; i < 4; ++i) outputs.push_back(StreamRig::poisoned_output());
  for (int call = 0; call < 3; ++call)
    if (const Status status = layer.forward(mine.args(outputs[call])); !status.ok())
      return {false, "enqueueing: " + status.message()};
  std::thread other([&] {
    (void)rig.group.layer(1).forward(rig.ranks[1]->args(outputs[3]));
    (void)rig.group.layer(1).finish();
  });
  const Status first = layer.finish();
  const Status second = layer.finish();
  const Status third = layer.forward(mine.args(outputs[0]));
  other.join();
  const bool told = first.code() == Code::kTimeout && first.message().find("rank 1") != std::string::npos &&
                    second.code() == Code::kPoisoned && third.code() == Code::kPoisoned &&
                    rig.is_right(0, outputs[0]) && rig.is_right(1, outputs[3]);
  const Status reset = first_error(rig.group.reset());
  const Status after =
      reset.ok() ? first_error(test::on_each_rank(
                       kRanks,
                       [&](uint32_t rank) -> Status {
                         const DeviceBuffer& output = outputs[1 + rank];
                         MEGAMOE_RETURN_IF_ERROR(rig.group.layer(rank).forward(rig.ranks[rank]->args(output)));
                         MEGAMOE_RETURN_IF_ERROR(rig.group.layer(rank).finish());
                         return rig.is_right(rank, output) ? Status{} : no("other bits after reset");
                       }))
                 : reset;
  return {told && after.ok(),
          fmt::format("finish: \"{}\"; again: {}; forward: {}; after reset: {}", first.message(), name(second.code()),
                      name(third.code()), after.ok() ? "the same bits as a plain call" : after.message())};
}

/// Both ranks call on one stream: told at once on both, and the next call on streams of their own is right.
Outcome shared_stream() {
  StreamRig rig;
  if (!rig.created().ok()) return {false, rig.created().message()};
  std::vector<DeviceBuffer> outputs;
  for (uint32_t i = 0; i < 2 * kRanks; ++i) outputs.push_back(StreamRig::poisoned_output());
  const auto start = std::chrono::steady_clock::now();
  std::vector<Status> told = test::on_each_rank(kRanks, [&](uint32_t rank) -> Status {
    ForwardArgs args = rig.ranks[rank]->args(outputs[rank]);
    args.cuda_stream = rig.ranks[0]->stream();
    const Status called = rig.group.layer(rank).forward(args);
    const Status finished = rig.group.layer(rank).finish();
    return called.ok() ? finished : called;
  });
  const auto took = std::chrono::steady_clock::now() - start;
  if (took > std::chrono::seconds(5)) return {false, "the ranks waited for each other"};
  for (const Status& status : told)
    if (status.message().find("got the same stream at ranks 0 and 1") == std::string::npos)
      return {false, "told: " + status.message()};
  const Status after = first_error(test::on_each_rank(kRanks, [&](uint32_t rank) -> Status {
    const DeviceBuffer& output = outputs[kRanks + rank];
    MEGAMOE_RETURN_IF_ERROR(rig.group.layer(rank).forward(rig.ranks[rank]->args(output)));
    MEGAMOE_RETURN_IF_ERROR(rig.group.layer(rank).finish());
    return rig.is_right(rank, output) ? Status{} : no("other bits than a plain call");
  }));
  return {after.ok(), after.ok() ? "told on both ranks: \"" + told[1].message() + "\"; the next call is right"
                                 : "the next call: " + after.message()};
}

}  // namespace

std::vector<Check> stream_checks() {
  return {
      {"stream.calls_in_flight", [] { return calls_in_flight(); }},
      {"stream.graph", [] { return graph(); }},
      {"stream.cut_short", [] { return cut_short(); }},
      {"stream.shared", [] { return shared_stream(); }},
  };
}

}  // namespace megamoe::device_check
