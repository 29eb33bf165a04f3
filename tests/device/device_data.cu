// Hashes as data: element i of seed s is the same number wherever it is made.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "core/formats/bf16.h"
#include "device/device_data.h"

namespace megamoe::device_check {
namespace {

__device__ uint64_t hash(uint64_t seed, uint64_t i) {
  uint64_t x = (seed << 32) + i + 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
/// In [-1, 1).
__device__ float uniform(uint64_t seed, uint64_t i) {
  return static_cast<float>(hash(seed, i) >> 40) * (2.0f / (1u << 24)) - 1.0f;
}

__device__ uint64_t thread_id() { return blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; }
__device__ uint64_t num_threads() { return uint64_t{gridDim.x} * blockDim.x; }

/// Four codes a step; the rounding to E4M3 is the hardware's, since any code is a weight.
__global__ void fill_codes_kernel(uint32_t* to, uint64_t words, uint64_t seed) {
  for (uint64_t i = thread_id(); i < words; i += num_threads()) {
    const uint64_t draw = hash(seed, i);
    uint32_t packed = 0;
    for (uint32_t j = 0; j < 2; ++j) {
      const auto number = [&](uint32_t n) {
        return static_cast<float>(static_cast<int16_t>(draw >> 16 * (2 * j + n))) * (448.0f / 32768.0f);
      };
      uint16_t pair;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(number(1)), "f"(number(0)));
      packed |= uint32_t{pair} << 16 * j;
    }
    to[i] = packed;
  }
}

__global__ void fill_scales_kernel(float* to, uint64_t count, uint64_t seed, float middle) {
  for (uint64_t i = thread_id(); i < count; i += num_threads()) to[i] = middle * (1.0f + 0.5f * uniform(seed, i));
}

__global__ void fill_bf16_kernel(uint16_t* to, uint64_t count, uint64_t seed, uint64_t period) {
  for (uint64_t i = thread_id(); i < count; i += num_threads()) to[i] = core::bf16_encode(uniform(seed, i % period));
}

/// One warp a row.
__global__ void differing_rows_kernel(const uint4* a, const uint4* b, uint64_t num_rows, uint64_t period,
                                      uint64_t row_words, unsigned long long* count) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint64_t row = thread_id() / 32; row < num_rows; row += num_threads() / 32) {
    bool differs = false;
    for (uint64_t i = lane; i < row_words; i += 32) {
      const uint4 x = a[row * row_words + i], y = b[row % period * row_words + i];
      differs = differs || x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
    }
    if (__any_sync(0xffffffffu, differs) && lane == 0) atomicAdd(count, 1ull);
  }
}

__device__ void pause(uint64_t ns) {
  const auto now = [] {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
  };
  const uint64_t start = now();
  while (now() - start < ns) __nanosleep(1000);
}

__global__ void hold_kernel(uint64_t ns, uint32_t* started) {
  if (threadIdx.x == 0) atomicAdd_system(started, 1u);
  pause(ns);
}

__global__ void copy_ids_kernel(int64_t* to, const int64_t* from, uint64_t count, uint64_t ns) {
  pause(ns);
  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

void launched(const char* what) { check_cuda(static_cast<int>(cudaGetLastError()), what); }

constexpr uint32_t kBlocks = 2048, kThreads = 256;
constexpr uint32_t kMostSharedBytes = 232448;

}  // namespace

void fill_bf16(void* to, uint64_t count, uint64_t seed, uint64_t period) {
  fill_bf16_kernel<<<kBlocks, kThreads>>>(static_cast<uint16_t*>(to), count, seed, period);
  launched("fill_bf16");
}

uint64_t count_differing_rows(const void* a, const void* b, uint64_t num_rows, uint64_t period, uint64_t row_bytes) {
  unsigned long long differing = 0;
  const DeviceBuffer count(&differing, sizeof(differing));
  differing_rows_kernel<<<kBlocks, kThreads>>>(static_cast<const uint4*>(a), static_cast<const uint4*>(b), num_rows,
                                               period, row_bytes / 16, static_cast<unsigned long long*>(count.data()));
  launched("count_differing_rows");
  count.fetch(&differing, sizeof(differing));
  return differing;
}

void hold_sms(uint32_t num_sms, uint64_t ns, cudaStream_t stream, bool awaited) {
  static uint32_t* const started = [] {
    void* pinned = nullptr;
    check_cuda(static_cast<int>(cudaMallocHost(&pinned, sizeof(uint32_t))), "pinned memory");
    return static_cast<uint32_t*>(pinned);
  }();
  if (awaited) *started = 0;
  check_cuda(static_cast<int>(cudaFuncSetAttribute(reinterpret_cast<const void*>(&hold_kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes)),
             "hold_sms");
  hold_kernel<<<num_sms, 32, kMostSharedBytes, stream>>>(ns, started);
  launched("hold_sms");
  while (awaited && *static_cast<volatile uint32_t*>(started) < num_sms) std::this_thread::yield();
}

void copy_ids_late(int64_t* to, const int64_t* from, uint64_t count, uint64_t ns, cudaStream_t stream) {
  copy_ids_kernel<<<1, 256, 0, stream>>>(to, from, count, ns);
  launched("copy_ids_late");
}

DeviceWeights::DeviceWeights(const MoeShape& shape, uint64_t seed) : shape_(shape) {
  const uint64_t e = shape.num_experts, h = shape.hidden, i = shape.intermediate;
  const uint64_t h_blocks = h / 128, i_blocks = (i + 127) / 128;
  const auto codes = [](DeviceBuffer& buffer, uint64_t count, uint64_t own_seed) {
    buffer = DeviceBuffer(count);
    fill_codes_kernel<<<kBlocks, kThreads>>>(static_cast<uint32_t*>(buffer.data()), count / 4, own_seed);
    launched("codes");
  };
  const auto scales = [](DeviceBuffer& buffer, uint64_t count, uint64_t own_seed, uint64_t columns) {
    buffer = DeviceBuffer(count * sizeof(float));
    const auto middle = static_cast<float>(2.0 / std::sqrt(static_cast<double>(columns)) / 448.0);
    fill_scales_kernel<<<64, kThreads>>>(static_cast<float*>(buffer.data()), count, own_seed, middle);
    launched("scales");
  };
  codes(w13_, e * 2 * i * h, seed);
  scales(w13_scale_, e * 2 * i_blocks * h_blocks, seed + 1, h);
  codes(w2_, e * h * i, seed + 2);
  scales(w2_scale_, e * h_blocks * i_blocks, seed + 3, i);
  check_cuda(static_cast<int>(cudaDeviceSynchronize()), "weights");
}

ExpertWeights DeviceWeights::of(uint32_t rank, uint32_t num_ranks) const {
  const int64_t local = shape_.num_experts / num_ranks, h = shape_.hidden, i = shape_.intermediate;
  const int64_t h_blocks = h / 128, i_blocks = (i + 127) / 128;
  const auto at = [&](const DeviceBuffer& buffer) {
    return static_cast<char*>(buffer.data()) + buffer.bytes() / num_ranks * rank;
  };
  ExpertWeights w;
  w.w13 = TensorView::dense(at(w13_), DType::kFloat8E4M3, {local, 2 * i, h});
  w.w13_scale = TensorView::dense(at(w13_scale_), DType::kFloat32, {local, 2, i_blocks, h_blocks});
  w.w2 = TensorView::dense(at(w2_), DType::kFloat8E4M3, {local, h, i});
  w.w2_scale = TensorView::dense(at(w2_scale_), DType::kFloat32, {local, h_blocks, i_blocks});
  w.w13_layout = W13Layout::kGateUp;
  w.scale_format = ScaleFormat::kFloat32;
  return w;
}

DeviceTokens::DeviceTokens(const MoeShape& own_shape, uint32_t count, uint64_t seed)
    : shape(own_shape),
      num_tokens(count),
      hidden(uint64_t{count} * own_shape.hidden * 2),
      device_ids(uint64_t{count} * own_shape.top_k * 8),
      device_router(uint64_t{count} * own_shape.top_k * 4),
      output(uint64_t{count} * own_shape.hidden * 2) {
  const uint64_t elements = uint64_t{count} * shape.hidden;
  if (elements != 0) fill_bf16(hidden.data(), elements, seed, elements);
  for (uint64_t token = 0; token < count; ++token) {
    // A random start and a random odd step visit K different experts where K times the step stays below E; else in
    // turn.
    const uint64_t draw = test::splitmix64((seed << 32) + token);
    const uint64_t experts = shape.num_experts, most = std::max<uint64_t>(1, (experts - 1) / shape.top_k);
    const uint64_t start = draw % experts, step = 1 + (draw >> 32) % most;
    float sum = 0;
    for (uint64_t slot = 0; slot < shape.top_k; ++slot) {
      ids.push_back(static_cast<int64_t>((start + slot * step) % experts));
      router.push_back(0.2f + static_cast<float>(test::splitmix64(draw + slot) >> 40) / (1u << 24));
      sum += router.back();
    }
    for (uint64_t slot = 0; slot < shape.top_k; ++slot) router[token * shape.top_k + slot] /= sum;
  }
  upload();
  poison();
}

void DeviceTokens::upload() {
  check_cuda(static_cast<int>(cudaMemcpy(device_ids.data(), ids.data(), ids.size() * 8, cudaMemcpyHostToDevice)),
             "ids");
  check_cuda(
      static_cast<int>(cudaMemcpy(device_router.data(), router.data(), router.size() * 4, cudaMemcpyHostToDevice)),
      "router weights");
}

void DeviceTokens::poison() { output.fill(0xff); }

ForwardArgs DeviceTokens::args(uint32_t first, uint32_t count) const {
  const int64_t t = count, h = shape.hidden, k = shape.top_k;
  const auto at = [&](const DeviceBuffer& buffer, uint64_t row_bytes) {
    return static_cast<char*>(buffer.data()) + first * row_bytes;
  };
  ForwardArgs args;
  args.hidden_states = TensorView::dense(at(hidden, shape.hidden * 2), DType::kBFloat16, {t, h});
  args.topk_ids = TensorView::dense(at(device_ids, shape.top_k * 8), DType::kInt64, {t, k});
  args.topk_weights = TensorView::dense(at(device_router, shape.top_k * 4), DType::kFloat32, {t, k});
  args.output = TensorView::dense(at(output, shape.hidden * 2), DType::kBFloat16, {t, h});
  for (TensorView* view : {&args.hidden_states, &args.topk_ids, &args.topk_weights, &args.output})
    view->device = Device::kCuda;
  return args;
}

}  // namespace megamoe::device_check
