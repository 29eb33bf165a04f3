// A layer on one GPU under test.
#include "device/rig.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "device/device_data.h"

namespace megamoe::device_check {
namespace {

constexpr uint64_t kSetupTimeoutNs = 20'000'000'000;

void on_every_rank(uint32_t num_ranks, const std::function<void(uint32_t)>& run) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
}

void must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::printf("FAIL %s: %s\n", what, status.message().c_str());
  std::exit(1);
}

}  // namespace

void check_cuda(int error, const char* what) {
  if (error == 0) return;
  std::printf("FAIL %s: CUDA error %s\n", what, cudaGetErrorName(static_cast<cudaError_t>(error)));
  std::fflush(stdout);
  std::_Exit(1);
}

DeviceBuffer::DeviceBuffer(uint64_t bytes) : bytes_(bytes) { check_cuda(cudaMalloc(&data_, bytes + 16), "cudaMalloc"); }
DeviceBuffer::DeviceBuffer(const void* host, uint64_t bytes) : DeviceBuffer(bytes) {
  check_cuda(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice), "copy to the GPU");
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
void DeviceBuffer::fetch(void* host, uint64_t bytes) const {
  check_cuda(cudaMemcpy(host, data_, bytes, cudaMemcpyDeviceToHost), "copy from the GPU");
}
void DeviceBuffer::fill(int byte) {
  check_cuda(cudaMemset(data_, byte, bytes_), "memset");
  check_cuda(cudaDeviceSynchronize(), "memset");
}

LayerConfig check_config(const MoeShape& shape, uint32_t max_tokens) {
  const char* seconds = std::getenv("MEGAMOE_DEVICE_CHECK_DEADLINE_S");
  LayerConfig config;
  config.shape = shape;
  config.max_tokens_per_rank = max_tokens;
  config.timeout_ns = (seconds != nullptr ? std::strtoull(seconds, nullptr, 10) : 20) * 1'000'000'000;
  return config;
}

double row_limit(const MoeShape& shape) { return shape.intermediate >= 1024 ? 1.5e-2 : 4e-2; }

void fetch_bytes(void* host, const void* device, uint64_t bytes) {
  check_cuda(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "copy from the GPU");
}

Rig::Rig(const LayerConfig& config, uint32_t num_ranks, const sm90::KernelInstance* instance)
    : config_(config), num_ranks_(num_ranks), ranks_(num_ranks) {
  Result<backends::BackendPlan> plan = sm90::plan_sm90(config, num_ranks, instance);
  must(plan.status(), "plan");
  plan_ = plan.value();
  auto group = make_cuda_thread_group(num_ranks);
  must(group.status(), "group");
  group_ = group.value();
  const protocol::Workspace layout = protocol::Workspace::plan(plan_.workspace);
  const sm90::KernelInstance& chosen =
      instance != nullptr ? *instance : (plan_.workspace.block_m == 64 ? sm90::m64_instance() : sm90::m128_instance());
  on_every_rank(num_ranks, [&](uint32_t r) {
    must(group_[r]->allocate(layout.bytes, kSetupTimeoutNs), "allocate");
    auto rank = sm90::Sm90Rank::create(config_, plan_, chosen, group_[r]);
    must(rank.status(), "create");
    ranks_[r] = std::move(rank).value();
  });
}

Rig::~Rig() {
  cudaDeviceSynchronize();
  ranks_.clear();
  on_every_rank(num_ranks_, [&](uint32_t r) { (void)group_[r]->release(kSetupTimeoutNs); });
}

void Rig::load(const test::TestWeights& weights, W13Layout layout) {
  const MoeShape& s = config_.shape;
  const int64_t local = s.num_experts / num_ranks_, h = s.hidden, i = s.intermediate;
  const int64_t i_blocks = (i + 127) / 128, h_blocks = h / 128;
  w13_ = DeviceBuffer(weights.w13.data(), weights.w13.size());
  w2_ = DeviceBuffer(weights.w2.data(), weights.w2.size());
  w13_scale_ = DeviceBuffer(weights.w13_scale.data(), weights.w13_scale.size() * 4);
  w2_scale_ = DeviceBuffer(weights.w2_scale.data(), weights.w2_scale.size() * 4);
  for (uint32_t r = 0; r < num_ranks_; ++r) {
    const auto at = [&](const DeviceBuffer& buffer) {
      return static_cast<char*>(buffer.data()) + buffer.bytes() / num_ranks_ * r;
    };
    ExpertWeights w;
    w.w13 = TensorView::dense(at(w13_), DType::kFloat8E4M3, {local, 2 * i, h});
    w.w13_scale = TensorView::dense(at(w13_scale_), DType::kFloat32, {local, 2, i_blocks, h_blocks});
    w.w2 = TensorView::dense(at(w2_), DType::kFloat8E4M3, {local, h, i});
    w.w2_scale = TensorView::dense(at(w2_scale_), DType::kFloat32, {local, h_blocks, i_blocks});
    w.w13_layout = layout;
    w.scale_format = ScaleFormat::kFloat32;
    must(ranks_[r]->load_weights(w), "load_weights");
  }
}

void Rig::load(const DeviceWeights& weights) {
  for (uint32_t r = 0; r < num_ranks_; ++r) must(ranks_[r]->load_weights(weights.of(r, num_ranks_)), "load_weights");
}

std::vector<Status> Rig::forward(const std::vector<ForwardArgs>& args, const std::function<void(uint32_t)>& before) {
  std::vector<Status> statuses(num_ranks_);
  on_every_rank(num_ranks_, [&](uint32_t r) {
    before(r);
    statuses[r] = ranks_[r]->forward(args[r], {});
  });
  return statuses;
}

std::vector<CallResult> Rig::run(const std::vector<test::TestTokens>& tokens, Entrance entrance, int absent,
                                 uint64_t timeout_ns) {
  const int64_t h = config_.shape.hidden, k = config_.shape.top_k;
  std::vector<CallResult> results(num_ranks_);
  std::vector<ForwardArgs> args(num_ranks_);
  std::vector<DeviceBuffer> buffers;
  std::vector<DeviceBuffer> outputs;
  const auto upload = [&](const auto& host) -> void* {
    buffers.emplace_back(host.data(), host.size() * sizeof(host[0]));
    return buffers.back().data();
  };
  for (uint32_t r = 0; r < num_ranks_; ++r) {
    const test::TestTokens& mine = tokens[r];
    const auto t = static_cast<int64_t>(mine.num_tokens);
    ForwardArgs& a = args[r];
    if (entrance == Entrance::kBf16) {
      a.hidden_states = TensorView::dense(upload(mine.hidden), DType::kBFloat16, {t, h});
    } else {
      const test::QuantizedTokens q = test::quantize_tokens(config_.shape, mine);
      void* codes = upload(q.codes);
      void* scales = upload(q.scales);
      if (entrance == Entrance::kFp8Views) {
        const InputViews views = backends::input_views(ranks_[r]->view(), Device::kCuda);
        check_cuda(cudaMemcpy(views.codes.data, codes, q.codes.size(), cudaMemcpyDeviceToDevice), "views");
        check_cuda(cudaMemcpy(views.scales.data, scales, q.scales.size() * 4, cudaMemcpyDeviceToDevice), "views");
        codes = views.codes.data;
        scales = views.scales.data;
      }
      a.hidden_states = TensorView::dense(codes, DType::kFloat8E4M3, {t, h});
      a.hidden_states_scale = TensorView::dense(scales, DType::kFloat32, {t, h / 128});
      a.scale_format = ScaleFormat::kFloat32;
    }
    a.topk_ids = TensorView::dense(upload(mine.topk_ids), DType::kInt64, {t, k});
    a.topk_weights = TensorView::dense(upload(mine.topk_weights), DType::kFloat32, {t, k});
    outputs.emplace_back(mine.num_tokens * static_cast<uint64_t>(h) * 2);
    outputs.back().fill(0xff);  // NaN: an element that is not written shows
    a.output = TensorView::dense(outputs.back().data(), DType::kBFloat16, {t, h});
    a.timeout_ns = timeout_ns;
  }
  check_cuda(cudaDeviceSynchronize(), "uploads");
  on_every_rank(num_ranks_, [&](uint32_t r) {
    if (static_cast<int>(r) == absent) return;
    results[r].status = ranks_[r]->forward(args[r], {});
    results[r].output.resize(tokens[r].num_tokens * static_cast<uint64_t>(h));
    outputs[r].fetch(results[r].output.data(), results[r].output.size() * 2);
  });
  return results;
}

void Rig::reset() {
  for (auto& rank : ranks_) must(rank->reset(), "reset");
}

}  // namespace megamoe::device_check
