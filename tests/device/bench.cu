// Times of the slices on one GPU in the cold protocol: L2 flushed, 100 ms idle, one call; E4M3 tokens in place.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "core/formats/e4m3.h"
#include "device/checks.h"
#include "device/rig.h"

namespace megamoe::device_check {
namespace {

__device__ uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/// E4M3 codes of a bell-shaped variable with standard deviation 150.
__global__ void fill_codes(uint8_t* codes, uint64_t count, uint64_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t r = mix(i + seed);
    const int sum = static_cast<int>((r & 255) + (r >> 16 & 255) + (r >> 32 & 255) + (r >> 48 & 255)) - 510;
    codes[i] = core::e4m3_encode(static_cast<float>(sum) * (150.0f / 147.8f));
  }
}

__global__ void fill_scales(float* scales, uint64_t count, float size, uint64_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x)
    scales[i] = size * (0.5f + static_cast<float>(mix(i + seed) >> 40) / 16777216.0f);
}

/// Keeps the stream busy while the host queues what is to be measured, so that no launch gap is measured with it.
__global__ void spin(uint64_t ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

DeviceBuffer random_codes(uint64_t count, uint64_t seed) {
  DeviceBuffer buffer(count);
  fill_codes<<<1024, 256>>>(static_cast<uint8_t*>(buffer.data()), count, seed << 40);
  check_cuda(cudaDeviceSynchronize(), "fill_codes");
  return buffer;
}
DeviceBuffer random_scales(uint64_t count, float size, uint64_t seed) {
  DeviceBuffer buffer(count * 4);
  fill_scales<<<256, 256>>>(static_cast<float*>(buffer.data()), count, size, seed << 40);
  check_cuda(cudaDeviceSynchronize(), "fill_scales");
  return buffer;
}

void must(const Status& status) {
  if (status.ok()) return;
  std::printf("FAIL bench: %s\n", status.message().c_str());
  std::_Exit(1);
}

/// Distinct experts per token, uniform.
std::vector<int32_t> routing(uint32_t num_tokens, uint32_t num_experts, uint32_t top_k, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(num_tokens * top_k), experts(num_experts);
  for (uint32_t e = 0; e < num_experts; ++e) experts[e] = static_cast<int32_t>(e);
  for (uint32_t token = 0; token < num_tokens; ++token) {
    for (uint32_t slot = 0; slot < top_k; ++slot) {
      std::swap(experts[slot], experts[slot + random() % (num_experts - slot)]);
      ids[token * top_k + slot] = experts[slot];
    }
  }
  return ids;
}

struct Slice {
  MoeShape shape;
  double peer_us(uint32_t tokens) const {
    constexpr uint32_t kTokens[] = {1, 8, 32, 128, 256, 512, 1024, 2048, 4096, 8192};
    constexpr double kFlash[] = {70.2, 189.0, 232.7, 240.3, 245.0, 345.5, 516.5, 879.9, 1634.2, 3101};
    constexpr double kPro[] = {145.6, 465.2, 792.0, 838.7, 832.3, 921.4, 1250.5, 2183.6, 4056, 7487};
    for (int i = 0; i < 10; ++i)
      if (kTokens[i] == tokens) return shape.hidden == 4096 ? kFlash[i] : kPro[i];
    return 0;
  }
};

/// For each event: how often, from when to when, and how long on average (us after the first line of the trace).
void print_trace(const sm90::TraceRecord* device, uint32_t num_rings, uint32_t capacity) {
  std::vector<sm90::TraceRecord> records(uint64_t{num_rings} * capacity);
  check_cuda(cudaMemcpy(records.data(), device, records.size() * sizeof(records[0]), cudaMemcpyDeviceToHost), "trace");
  constexpr auto kEvents = static_cast<uint32_t>(protocol::Event::kCount);
  struct Line {
    uint32_t begins = 0, ends = 0, pairs = 0;
    double first_begin = 1e30, last_begin = 0, first_end = 1e30, last_end = 0, sum = 0, longest = 0;
  } lines[kEvents];
  uint64_t origin = UINT64_MAX, last = 0;
  for (const sm90::TraceRecord& r : records)
    if (r.time_ns != 0) origin = std::min(origin, r.time_ns), last = std::max(last, r.time_ns);
  for (uint32_t ring = 0; ring < num_rings; ++ring) {
    std::vector<sm90::TraceRecord> mine;
    for (uint32_t i = 0; i < capacity; ++i)
      if (records[uint64_t{ring} * capacity + i].time_ns != 0) mine.push_back(records[uint64_t{ring} * capacity + i]);
    std::stable_sort(mine.begin(), mine.end(), [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
    double open[kEvents];
    std::fill(open, open + kEvents, -1.0);
    for (const sm90::TraceRecord& r : mine) {
      const auto event = static_cast<uint32_t>(r.event);
      if (event >= kEvents) continue;
      Line& line = lines[event];
      const double us = static_cast<double>(r.time_ns - origin) * 1e-3;
      if (r.is_end == 0) {
        ++line.begins;
        line.first_begin = std::min(line.first_begin, us);
        line.last_begin = std::max(line.last_begin, us);
        open[event] = us;
      } else {
        ++line.ends;
        line.first_end = std::min(line.first_end, us);
        line.last_end = std::max(line.last_end, us);
        if (open[event] >= 0) {
          ++line.pairs;
          line.sum += us - open[event];
          line.longest = std::max(line.longest, us - open[event]);
        }
        open[event] = -1;
      }
    }
  }
  std::printf("  trace: %.1f us between first and last line\n", static_cast<double>(last - origin) * 1e-3);
  for (uint32_t event = 0; event < kEvents; ++event) {
    const Line& l = lines[event];
    if (l.begins + l.ends == 0) continue;
    std::printf("  %-14s begins %6u [%8.1f .. %8.1f] ends %6u [%8.1f .. %8.1f] mean %8.2f longest %8.1f\n",
                protocol::name(static_cast<protocol::Event>(event)), l.begins, l.begins ? l.first_begin : 0,
                l.last_begin, l.ends, l.ends ? l.first_end : 0, l.last_end, l.pairs ? l.sum / l.pairs : 0, l.longest);
  }
}

void bench_tokens(Rig& rig, const Slice& slice, uint32_t num_tokens, uint32_t observations, const DeviceBuffer& codes,
                  const DeviceBuffer& scales, const DeviceBuffer& flush, const char* name,
                  const sm90::KernelInstance& instance) {
  constexpr uint32_t kTraceCapacity = 8192;
  const bool traced = std::string(instance.spec.name).find("trace") != std::string::npos;
  const uint32_t num_rings = rig.rank(0).num_ctas() * instance.spec.plan.num_warps(), trace_capacity = kTraceCapacity;
  DeviceBuffer trace_buffer(traced ? uint64_t{num_rings} * trace_capacity * sizeof(sm90::TraceRecord) : 16);
  auto* trace = traced ? static_cast<sm90::TraceRecord*>(trace_buffer.data()) : nullptr;
  rig.rank(0).set_trace(trace, trace_capacity);
  const MoeShape& s = slice.shape;
  const int64_t t = num_tokens, h = s.hidden, k = s.top_k;
  DeviceBuffer ids(uint64_t{num_tokens} * s.top_k * 4), output(uint64_t{num_tokens} * s.hidden * 2);
  const DeviceBuffer weights = random_scales(uint64_t{num_tokens} * s.top_k, 1.0f / static_cast<float>(s.top_k), 5);
  ForwardArgs args;
  args.hidden_states = TensorView::dense(codes.data(), DType::kFloat8E4M3, {t, h});
  args.hidden_states_scale = TensorView::dense(scales.data(), DType::kFloat32, {t, h / 128});
  args.scale_format = ScaleFormat::kFloat32;
  args.topk_ids = TensorView::dense(ids.data(), DType::kInt32, {t, k});
  args.topk_weights = TensorView::dense(weights.data(), DType::kFloat32, {t, k});
  args.output = TensorView::dense(output.data(), DType::kBFloat16, {t, h});
  cudaStream_t stream;
  cudaEvent_t begin, end;
  check_cuda(cudaStreamCreate(&stream), "stream");
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<double> us;
  for (uint32_t n = 0; n < observations + 1; ++n) {
    const std::vector<int32_t> host = routing(num_tokens, s.num_experts, s.top_k, 1000 * num_tokens + n);
    check_cuda(cudaMemcpy(ids.data(), host.data(), host.size() * 4, cudaMemcpyHostToDevice), "ids");
    if (traced) trace_buffer.fill(0);
    check_cuda(cudaMemset(flush.data(), static_cast<int>(n), flush.bytes()), "flush");
    check_cuda(cudaDeviceSynchronize(), "flush");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    spin<<<1, 1, 0, stream>>>(300'000);
    check_cuda(cudaEventRecord(begin, stream), "record");
    must(rig.rank(0).enqueue(args, {}, stream));
    check_cuda(cudaEventRecord(end, stream), "record");
    check_cuda(cudaStreamSynchronize(stream), "synchronize");
    must(rig.rank(0).finish());
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (n > 0) us.push_back(ms * 1e3);
  }
  std::sort(us.begin(), us.end());
  const double median = us[us.size() / 2], peer = slice.peer_us(num_tokens);
  const double flop = 6.0 * num_tokens * s.top_k * s.hidden * s.intermediate;
  std::printf("bench %s %5u tokens: median %8.1f us, min %8.1f, max %8.1f; %6.0f TFLOPS; peer %7.1f us, ratio %.2f\n",
              name, num_tokens, median, us.front(), us.back(), flop / median * 1e-6, peer,
              peer > 0 ? median / peer : 0);
  if (trace != nullptr) print_trace(trace, num_rings, trace_capacity);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
}

}  // namespace

void bench(const std::string& which, const std::vector<uint32_t>& tokens, uint32_t observations) {
  const bool traced = which.find("trace") != std::string::npos;
  const std::string slice_name = which.substr(0, which.find('-'));
  const Slice slice{slice_name == "flash" ? MoeShape{4096, 2048, 32, 6} : MoeShape{7168, 3072, 48, 6}};
  const MoeShape& s = slice.shape;
  const uint32_t capacity = *std::max_element(tokens.begin(), tokens.end());
  const int64_t e = s.num_experts, h = s.hidden, i = s.intermediate;
  const DeviceBuffer w13 = random_codes(uint64_t(e * 2 * i * h), 1), w2 = random_codes(uint64_t(e * h * i), 2);
  const DeviceBuffer w13_scale = random_scales(uint64_t(e * 2 * (i / 128) * (h / 128)), 1e-4f, 3);
  const DeviceBuffer w2_scale = random_scales(uint64_t(e * (h / 128) * (i / 128)), 1e-4f, 4);
  const DeviceBuffer codes = random_codes(uint64_t{capacity} * s.hidden, 6);
  const DeviceBuffer scales = random_scales(uint64_t{capacity} * s.hidden / 128, 5e-3f, 7);
  const DeviceBuffer flush(256 << 20);
  ExpertWeights weights;
  weights.w13 = TensorView::dense(w13.data(), DType::kFloat8E4M3, {e, 2 * i, h});
  weights.w13_scale = TensorView::dense(w13_scale.data(), DType::kFloat32, {e, 2, i / 128, h / 128});
  weights.w2 = TensorView::dense(w2.data(), DType::kFloat8E4M3, {e, h, i});
  weights.w2_scale = TensorView::dense(w2_scale.data(), DType::kFloat32, {e, h / 128, i / 128});
  weights.w13_layout = W13Layout::kGateUp;
  weights.scale_format = ScaleFormat::kFloat32;
  const bool small = which.find("m64") != std::string::npos, large = which.find("m128") != std::string::npos;
  std::vector<const sm90::KernelInstance*> kernels;
  if (traced) kernels.push_back(&sm90::m128_trace_instance());
  if (!traced && !small) kernels.push_back(&sm90::m128_instance());
  if (!traced && !large) kernels.push_back(&sm90::m64_instance());
  for (const sm90::KernelInstance* instance : kernels) {
    LayerConfig config;
    config.shape = s;
    config.max_tokens_per_rank = capacity;
    config.timeout_ns = 4'000'000'000;
    Rig rig(config, 1, instance);
    must(rig.rank(0).load_weights(weights));
    for (const uint32_t num_tokens : tokens)
      if (instance->spec.block_m == 128 || num_tokens <= 512)
        bench_tokens(rig, slice, num_tokens, observations, codes, scales, flush,
                     (slice_name + " " + instance->spec.name).c_str(), *instance);
  }
}

}  // namespace megamoe::device_check
