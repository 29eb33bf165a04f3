// The few small kernels of the bench.
#include "bench/gpu_data.h"
#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"

namespace megamoe::bench {
namespace {

__device__ uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/// Bell-shaped with standard deviation 1: the sum of four bytes.
__device__ float bell(uint64_t r) {
  const int sum = static_cast<int>((r & 255) + (r >> 16 & 255) + (r >> 32 & 255) + (r >> 48 & 255)) - 510;
  return static_cast<float>(sum) * (1.0f / 147.8f);
}

template <class T, class Make>
__device__ void fill(T* data, uint64_t count, Make make) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x)
    data[i] = make(i);
}

__global__ void fill_codes(uint8_t* codes, uint64_t count, uint64_t key) {
  fill(codes, count, [&](uint64_t i) { return core::e4m3_encode(150.0f * bell(mix(i + key))); });
}

__global__ void fill_floats(float* values, uint64_t count, float middle, uint64_t key) {
  fill(values, count,
       [&](uint64_t i) { return middle * (0.5f + static_cast<float>(mix(i + key) >> 40) / 16777216.0f); });
}

__global__ void fill_bf16(uint16_t* values, uint64_t count, uint64_t key) {
  fill(values, count, [&](uint64_t i) { return core::bf16_encode(bell(mix(i + key))); });
}

__device__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void wait_in_line(uint32_t* arrivals, uint32_t wanted, uint64_t hold_ns) {
  constexpr uint64_t kPatienceNs = 2'000'000'000;  // a rank that does not come must not hold the GPU for ever
  atomicAdd_system(arrivals, 1u);
  const uint64_t start_ns = now_ns();
  while (static_cast<int32_t>(*static_cast<volatile uint32_t*>(arrivals) - wanted) < 0 &&
         now_ns() - start_ns < kPatienceNs) {
  }
  const uint64_t lined_up_ns = now_ns();
  while (now_ns() - lined_up_ns < hold_ns) {
  }
}

template <class T, class Fill>
Result<DeviceBuffer> filled(uint64_t count, Fill run) {
  Result<DeviceBuffer> buffer = DeviceBuffer::allocate(count * sizeof(T));
  if (!buffer.ok()) return buffer;
  run(static_cast<T*>(buffer->data()));
  MEGAMOE_BENCH_CUDA(cudaGetLastError());
  MEGAMOE_BENCH_CUDA(cudaDeviceSynchronize());
  return buffer;
}

constexpr unsigned kBlocks = 1024, kThreads = 256;

}  // namespace

Result<DeviceBuffer> random_codes(uint64_t count, uint64_t seed) {
  return filled<uint8_t>(count, [&](uint8_t* data) { fill_codes<<<kBlocks, kThreads>>>(data, count, seed << 40); });
}

Result<DeviceBuffer> random_floats(uint64_t count, float middle, uint64_t seed) {
  return filled<float>(count,
                       [&](float* data) { fill_floats<<<kBlocks, kThreads>>>(data, count, middle, seed << 40); });
}

Result<DeviceBuffer> random_bf16(uint64_t count, uint64_t seed) {
  return filled<uint16_t>(count, [&](uint16_t* data) { fill_bf16<<<kBlocks, kThreads>>>(data, count, seed << 40); });
}

Status line_up(uint32_t* arrivals, uint32_t wanted, uint64_t hold_ns, cudaStream_t stream) {
  wait_in_line<<<1, 1, 0, stream>>>(arrivals, wanted, hold_ns);
  return cuda_status(cudaGetLastError(), "line_up");
}

}  // namespace megamoe::bench
