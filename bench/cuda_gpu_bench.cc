// Both protocols on CUDA streams, through the public layer: what is timed is what an engine calls.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <regex>
#include <thread>

#include "bench/gpu_bench.h"
#include "bench/gpu_data.h"

namespace megamoe::bench {
namespace {

constexpr uint64_t kHoldNs = 300'000;
constexpr uint64_t kFlushBytes = uint64_t{256} << 20;  // several times the L2
constexpr auto kIdle = std::chrono::milliseconds(100);
constexpr uint32_t kWarmUpReplays = 2;

struct WeightSet {
  DeviceBuffer w13, w13_scale, w2, w2_scale;
};

/// One rank: its stream, its data on its GPU, its layer.
struct Rank {
  int32_t gpu = 0;
  cudaStream_t stream = nullptr;
  std::vector<WeightSet> weights;
  DeviceBuffer codes, scales, hidden, topk_weights, output;
  std::vector<DeviceBuffer> ids;  ///< By call of the graph.
  std::optional<MoeLayer> layer;

  Status use_gpu() const { return cuda_status(cudaSetDevice(gpu), "cudaSetDevice"); }
};

/// A pair of events on each rank's stream for each observation.
class Events {
 public:
  Events(const std::vector<Rank>& ranks, uint32_t num_observations) : events_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      cudaSetDevice(ranks[r].gpu);
      events_[r].resize(size_t{2} * num_observations);
      for (cudaEvent_t& event : events_[r]) cudaEventCreate(&event);
    }
  }
  ~Events() {
    for (const auto& of_rank : events_)
      for (const cudaEvent_t event : of_rank) cudaEventDestroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  cudaEvent_t begin(size_t rank, uint32_t observation) const { return events_[rank][size_t{2} * observation]; }
  cudaEvent_t end(size_t rank, uint32_t observation) const { return events_[rank][size_t{2} * observation + 1]; }
  /// Of the rank that took longest.
  Result<double> longest_us(uint32_t observation) const {
    double longest = 0;
    for (size_t rank = 0; rank < events_.size(); ++rank) {
      float ms = 0;
      MEGAMOE_BENCH_CUDA(cudaEventElapsedTime(&ms, begin(rank, observation), end(rank, observation)));
      longest = std::max(longest, ms * 1e3);
    }
    return longest;
  }

 private:
  std::vector<std::vector<cudaEvent_t>> events_;
};

/// A graph that goes with its owner.
class Graph {
 public:
  Graph() = default;
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;

  /// Relaxed: loading weights between the captured calls looks at their scales, which a stricter mode would forbid.
  template <class Enqueue>
  Status capture(cudaStream_t stream, Enqueue enqueue) {
    cudaGraph_t graph = nullptr;
    MEGAMOE_BENCH_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    const Status enqueued = enqueue();
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    MEGAMOE_RETURN_IF_ERROR(enqueued);
    MEGAMOE_BENCH_CUDA(ended);
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    return cuda_status(made, "cudaGraphInstantiate");
  }
  Status launch(cudaStream_t stream) const {
    return cuda_status(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// Runs `body(rank)` on a thread a rank: for collective calls.
template <class Body>
Status on_every_rank(std::vector<Rank>& ranks, Body body) {
  std::vector<Status> statuses(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks.size(); ++r)
      threads.emplace_back([&, r] {
        statuses[r] = ranks[r].use_gpu();
        if (statuses[r].ok()) statuses[r] = body(r);
      });
  }
  for (const Status& status : statuses) MEGAMOE_RETURN_IF_ERROR(status);
  return {};
}

template <class T>
Status keep(Result<T> made, T& to) {
  if (made.ok()) to = std::move(made).value();
  return made.status();
}

class CudaBench final : public GpuBench {
 public:
  explicit CudaBench(const Subject& subject) : subject_(subject), ranks_(subject.gpus.size()) {}
  ~CudaBench() override {
    close();
    for (const Rank& rank : ranks_)
      if (rank.stream != nullptr) cudaStreamDestroy(rank.stream);
    cudaFreeHost(arrivals_);
  }
  CudaBench(const CudaBench&) = delete;
  CudaBench& operator=(const CudaBench&) = delete;

  Status set_up();
  Result<Timing> time(const Measurement& m, const Route& route) override;
  std::string hardware() const override;

 private:
  const MoeShape& shape() const { return subject_.config.shape; }
  uint32_t local_experts() const { return shape().num_experts / static_cast<uint32_t>(ranks_.size()); }
  Status add_weights(Rank& rank, uint64_t seed) const;
  Status open(uint32_t tokens);
  void close();
  ExpertWeights weights_of(const Rank& rank, uint32_t set) const;
  ForwardArgs args_of(const Rank& rank, const Measurement& m, uint32_t call) const;
  /// Draws a call's routing, uploads it, and adds what the call must do.
  Status place_routing(const Measurement& m, uint32_t call, const Route& route, CallLoad& sum);
  Status line_up_ranks(const Events& events, uint32_t observation);
  Status wait_for_ranks();
  Status time_cold(const Measurement& m, const Route& route, Timing& timing);
  Status time_steady(const Measurement& m, const Route& route, Timing& timing);

  Subject subject_;
  std::vector<Rank> ranks_;
  std::vector<std::pair<int32_t, DeviceBuffer>> flush_;  ///< By GPU.
  uint32_t* arrivals_ = nullptr;
  uint32_t num_arrivals_ = 0;
  uint64_t num_calls_ = 0;
  uint32_t open_tokens_ = 0;
  std::vector<int32_t> host_ids_;
};

Status CudaBench::add_weights(Rank& rank, uint64_t seed) const {
  const uint64_t n = local_experts(), h = shape().hidden, i = shape().intermediate;
  const uint64_t blocks = n * (h / kScaleGroup) * ((i + kScaleGroup - 1) / kScaleGroup);
  WeightSet set;
  MEGAMOE_RETURN_IF_ERROR(keep(random_codes(n * 2 * i * h, seed), set.w13));
  MEGAMOE_RETURN_IF_ERROR(keep(random_codes(n * i * h, seed + 1), set.w2));
  MEGAMOE_RETURN_IF_ERROR(keep(random_floats(2 * blocks, 1e-4F, seed + 2), set.w13_scale));
  MEGAMOE_RETURN_IF_ERROR(keep(random_floats(blocks, 1e-4F, seed + 3), set.w2_scale));
  rank.weights.push_back(std::move(set));
  return {};
}

Status CudaBench::set_up() {
  constexpr uint64_t kSeedsPerRank = 64;
  MEGAMOE_BENCH_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&arrivals_), sizeof(*arrivals_), cudaHostAllocPortable));
  *arrivals_ = 0;
  const uint64_t tokens = subject_.most_tokens, h = shape().hidden, k = shape().top_k;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.gpu = subject_.gpus[r];
    MEGAMOE_RETURN_IF_ERROR(rank.use_gpu());
    MEGAMOE_BENCH_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    const uint64_t seed = subject_.seed * 1000 + r * kSeedsPerRank;
    MEGAMOE_RETURN_IF_ERROR(add_weights(rank, seed));
    MEGAMOE_RETURN_IF_ERROR(keep(random_codes(tokens * h, seed + 60), rank.codes));
    MEGAMOE_RETURN_IF_ERROR(keep(random_floats(tokens * h / kScaleGroup, 5e-3F, seed + 61), rank.scales));
    MEGAMOE_RETURN_IF_ERROR(keep(random_bf16(tokens * h, seed + 62), rank.hidden));
    MEGAMOE_RETURN_IF_ERROR(
        keep(random_floats(tokens * k, 1.0F / static_cast<float>(k), seed + 63), rank.topk_weights));
    MEGAMOE_RETURN_IF_ERROR(keep(DeviceBuffer::allocate(tokens * h * 2), rank.output));
    for (uint32_t call = 0; call < kSteadyCalls; ++call)
      MEGAMOE_RETURN_IF_ERROR(keep(DeviceBuffer::allocate(tokens * k * 4), rank.ids.emplace_back()));
    if (std::any_of(flush_.begin(), flush_.end(), [&](const auto& known) { return known.first == rank.gpu; })) continue;
    MEGAMOE_RETURN_IF_ERROR(
        keep(DeviceBuffer::allocate(kFlushBytes), flush_.emplace_back(rank.gpu, DeviceBuffer()).second));
  }
  return {};
}

ExpertWeights CudaBench::weights_of(const Rank& rank, uint32_t set) const {
  const int64_t n = local_experts(), h = shape().hidden, i = shape().intermediate;
  const int64_t h_blocks = h / kScaleGroup, i_blocks = (i + kScaleGroup - 1) / kScaleGroup;
  const WeightSet& from = rank.weights[set];
  ExpertWeights weights;
  weights.w13 = TensorView::dense(from.w13.data(), DType::kFloat8E4M3, {n, 2 * i, h});
  weights.w13_scale = TensorView::dense(from.w13_scale.data(), DType::kFloat32, {n, 2, i_blocks, h_blocks});
  weights.w2 = TensorView::dense(from.w2.data(), DType::kFloat8E4M3, {n, h, i});
  weights.w2_scale = TensorView::dense(from.w2_scale.data(), DType::kFloat32, {n, h_blocks, i_blocks});
  for (TensorView* view : {&weights.w13, &weights.w13_scale, &weights.w2, &weights.w2_scale})
    view->device = Device::kCuda;
  weights.w13_layout = W13Layout::kGateUp;
  weights.scale_format = ScaleFormat::kFloat32;
  return weights;
}

ForwardArgs CudaBench::args_of(const Rank& rank, const Measurement& m, uint32_t call) const {
  const int64_t t = m.tokens_per_rank, h = shape().hidden, k = shape().top_k;
  ForwardArgs args;
  if (m.input == TokenInput::kFp8) {
    const InputViews views = rank.layer->input_views();
    args.hidden_states = views.codes;
    args.hidden_states_scale = views.scales;
    args.scale_format = ScaleFormat::kFloat32;
  } else {
    args.hidden_states = TensorView::dense(rank.hidden.data(), DType::kBFloat16, {t, h});
  }
  args.topk_ids = TensorView::dense(rank.ids[call].data(), DType::kInt32, {t, k});
  args.topk_weights = TensorView::dense(rank.topk_weights.data(), DType::kFloat32, {t, k});
  args.output = TensorView::dense(rank.output.data(), DType::kBFloat16, {t, h});
  for (TensorView* view : {&args.hidden_states, &args.topk_ids, &args.topk_weights, &args.output})
    view->device = Device::kCuda;
  args.cuda_stream = rank.stream;
  return args;
}

Status CudaBench::open(uint32_t tokens) {
  if (open_tokens_ == tokens) return {};
  close();
  LayerConfig config = subject_.config;
  config.max_tokens_per_rank = tokens;
  config.backend = "cuda";
  auto group = make_cuda_thread_group(static_cast<uint32_t>(ranks_.size()), ranks_.front().gpu);
  if (!group.ok()) return group.status();
  const Status opened = on_every_rank(ranks_, [&](size_t r) -> Status {
    Rank& rank = ranks_[r];
    Result<MoeLayer> layer = MoeLayer::create(config, group.value()[r]);
    if (!layer.ok()) return layer.status();
    rank.layer.emplace(std::move(layer).value());
    return rank.layer->load_weights(weights_of(rank, 0));
  });
  open_tokens_ = opened.ok() ? tokens : 0;
  return opened;
}

void CudaBench::close() {
  (void)on_every_rank(ranks_, [&](size_t r) {
    ranks_[r].layer.reset();
    return Status{};
  });
  open_tokens_ = 0;
}

Status CudaBench::place_routing(const Measurement& m, uint32_t call, const Route& route, CallLoad& sum) {
  const size_t per_rank = size_t{m.tokens_per_rank} * shape().top_k;
  host_ids_.resize(per_rank * ranks_.size());
  route(num_calls_++, host_ids_);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    MEGAMOE_RETURN_IF_ERROR(ranks_[r].use_gpu());
    MEGAMOE_BENCH_CUDA(
        cudaMemcpy(ranks_[r].ids[call].data(), host_ids_.data() + r * per_rank, per_rank * 4, cudaMemcpyHostToDevice));
  }
  const CallLoad load = load_of(shape(), subject_.gpus, host_ids_);
  sum.weights_us += load.weights_us;
  sum.gemm_us += load.gemm_us;
  sum.rows_max_over_mean += load.rows_max_over_mean;
  return {};
}

Status CudaBench::line_up_ranks(const Events& events, uint32_t observation) {
  num_arrivals_ += static_cast<uint32_t>(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    MEGAMOE_RETURN_IF_ERROR(ranks_[r].use_gpu());
    MEGAMOE_RETURN_IF_ERROR(line_up(arrivals_, num_arrivals_, kHoldNs, ranks_[r].stream));
    MEGAMOE_BENCH_CUDA(cudaEventRecord(events.begin(r, observation), ranks_[r].stream));
  }
  return {};
}

Status CudaBench::wait_for_ranks() {
  for (Rank& rank : ranks_) {
    MEGAMOE_RETURN_IF_ERROR(rank.use_gpu());
    MEGAMOE_BENCH_CUDA(cudaStreamSynchronize(rank.stream));
    MEGAMOE_RETURN_IF_ERROR(rank.layer->finish());
  }
  return {};
}

Status CudaBench::time_cold(const Measurement& m, const Route& route, Timing& timing) {
  const Events events(ranks_, 1);
  auto idle_since = std::chrono::steady_clock::now();
  for (uint32_t n = 0; n <= m.num_observations; ++n) {
    if (n == 1) timing.load = {};  // the warm-up is not counted
    MEGAMOE_RETURN_IF_ERROR(place_routing(m, 0, route, timing.load));
    for (const auto& [gpu, buffer] : flush_) {
      MEGAMOE_BENCH_CUDA(cudaSetDevice(gpu));
      MEGAMOE_BENCH_CUDA(cudaMemset(buffer.data(), static_cast<int>(n), buffer.bytes()));
      MEGAMOE_BENCH_CUDA(cudaDeviceSynchronize());
    }
    std::this_thread::sleep_until(idle_since + kIdle);
    MEGAMOE_RETURN_IF_ERROR(line_up_ranks(events, 0));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      MEGAMOE_RETURN_IF_ERROR(ranks_[r].use_gpu());
      MEGAMOE_RETURN_IF_ERROR(ranks_[r].layer->forward(args_of(ranks_[r], m, 0)));
      MEGAMOE_BENCH_CUDA(cudaEventRecord(events.end(r, 0), ranks_[r].stream));
    }
    MEGAMOE_RETURN_IF_ERROR(wait_for_ranks());
    idle_since = std::chrono::steady_clock::now();
    const Result<double> us = events.longest_us(0);
    if (!us.ok()) return us.status();
    if (n > 0) timing.sorted_us.push_back(us.value());
  }
  return {};
}

Status CudaBench::time_steady(const Measurement& m, const Route& route, Timing& timing) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    MEGAMOE_RETURN_IF_ERROR(ranks_[r].use_gpu());
    while (ranks_[r].weights.size() < kWeightSets)
      MEGAMOE_RETURN_IF_ERROR(
          add_weights(ranks_[r], subject_.seed * 1000 + 500 + r * 16 + ranks_[r].weights.size() * 4));
  }
  for (uint32_t call = 0; call < kSteadyCalls; ++call)
    MEGAMOE_RETURN_IF_ERROR(place_routing(m, call, route, timing.load));
  std::vector<Graph> graphs(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    MEGAMOE_RETURN_IF_ERROR(rank.use_gpu());
    const Status captured = graphs[r].capture(rank.stream, [&]() -> Status {
      for (uint32_t call = 0; call < kSteadyCalls; ++call) {
        MEGAMOE_RETURN_IF_ERROR(rank.layer->load_weights(weights_of(rank, call % kWeightSets)));
        MEGAMOE_RETURN_IF_ERROR(rank.layer->forward(args_of(rank, m, call)));
      }
      return {};
    });
    MEGAMOE_RETURN_IF_ERROR(captured);
  }
  const uint32_t num_replays = kWarmUpReplays + m.num_observations;
  const Events events(ranks_, num_replays);
  for (uint32_t n = 0; n < num_replays; ++n) {
    MEGAMOE_RETURN_IF_ERROR(line_up_ranks(events, n));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      MEGAMOE_RETURN_IF_ERROR(ranks_[r].use_gpu());
      MEGAMOE_RETURN_IF_ERROR(graphs[r].launch(ranks_[r].stream));
      MEGAMOE_BENCH_CUDA(cudaEventRecord(events.end(r, n), ranks_[r].stream));
    }
  }
  MEGAMOE_RETURN_IF_ERROR(wait_for_ranks());
  for (uint32_t n = kWarmUpReplays; n < num_replays; ++n) {
    const Result<double> us = events.longest_us(n);
    if (!us.ok()) return us.status();
    timing.sorted_us.push_back(us.value() / kSteadyCalls);
  }
  return {};
}

Result<Timing> CudaBench::time(const Measurement& m, const Route& route) {
  MEGAMOE_RETURN_IF_ERROR(open(m.tokens_per_rank));
  const uint64_t elements = uint64_t{m.tokens_per_rank} * shape().hidden;
  for (const Rank& rank : ranks_) {  // BF16 calls overwrite the views
    MEGAMOE_RETURN_IF_ERROR(rank.use_gpu());
    const InputViews views = rank.layer->input_views();
    MEGAMOE_BENCH_CUDA(cudaMemcpy(views.codes.data, rank.codes.data(), elements, cudaMemcpyDeviceToDevice));
    MEGAMOE_BENCH_CUDA(
        cudaMemcpy(views.scales.data, rank.scales.data(), elements / kScaleGroup * 4, cudaMemcpyDeviceToDevice));
    MEGAMOE_BENCH_CUDA(cudaDeviceSynchronize());
  }
  Timing timing;
  timing.plan = ranks_.front().layer->plan();
  const bool is_cold = m.protocol == Protocol::kCold;
  MEGAMOE_RETURN_IF_ERROR(is_cold ? time_cold(m, route, timing) : time_steady(m, route, timing));
  std::sort(timing.sorted_us.begin(), timing.sorted_us.end());
  const double calls = is_cold ? m.num_observations : kSteadyCalls;
  for (double* sum : {&timing.load.weights_us, &timing.load.gemm_us, &timing.load.rows_max_over_mean}) *sum /= calls;
  return timing;
}

std::string CudaBench::hardware() const {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, ranks_.front().gpu) != cudaSuccess) return "unknown GPU";
  std::string name = properties.name;
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::smatch version;
  if (std::getline(file, line) && std::regex_search(line, version, std::regex(R"(\b(\d+\.\d+(\.\d+)?)\b)")))
    name += ", driver " + version[1].str();
  return name;
}

}  // namespace

Result<std::unique_ptr<GpuBench>> GpuBench::create(const Subject& subject) {
  // The plan first: what cannot run is refused before gigabytes are filled.
  LayerConfig config = subject.config;
  config.max_tokens_per_rank = subject.most_tokens;
  config.backend = "cuda";
  const auto plan = MoeLayer::plan(config, static_cast<uint32_t>(subject.gpus.size()));
  if (!plan.ok()) return plan.status();
  const auto group = make_cuda_thread_group(static_cast<uint32_t>(subject.gpus.size()), subject.gpus.front());
  if (!group.ok()) return group.status();
  auto bench = std::make_unique<CudaBench>(subject);
  MEGAMOE_RETURN_IF_ERROR(bench->set_up());
  return std::unique_ptr<GpuBench>(std::move(bench));
}

}  // namespace megamoe::bench
