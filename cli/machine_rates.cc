// Measures the two rates that bound a layer on a CPU: bytes read from memory, and FP32 multiply-adds.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "cli/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megamoe::cli {
namespace {

constexpr uint64_t kReadBytesPerThread = uint64_t{256} << 20;
constexpr uint64_t kFmaSteps = 4'000'000;
constexpr int kRounds = 3;

/// Seconds until the last of `num_threads` threads has done `work(thread)`; the best of kRounds.
double best_seconds(uint32_t num_threads, const std::function<void(uint32_t)>& work) {
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto started = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (uint32_t i = 0; i < num_threads; ++i) threads.emplace_back(work, i);
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  }
  return best;
}

/// Sums so that nothing can be left out; four independent chains keep loads in flight.
uint64_t read_all(const std::vector<uint64_t>& words) {
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  uint64_t d = 0;
  for (size_t i = 0; i + 4 <= words.size(); i += 4) {
    a += words[i];
    b += words[i + 1];
    c += words[i + 2];
    d += words[i + 3];
  }
  return a + b + c + d;
}

#if defined(__x86_64__)
/// kFmaSteps steps of ten independent 8-wide chains; returns the multiply-adds.
__attribute__((target("avx2,fma"))) uint64_t fma_avx2(float& sink) {
  __m256 chain[10];
  for (auto& value : chain) value = _mm256_set1_ps(sink);
  const __m256 factor = _mm256_set1_ps(0.999F);
  const __m256 addend = _mm256_set1_ps(0.001F);
  for (uint64_t step = 0; step < kFmaSteps; ++step) {
    for (auto& value : chain) value = _mm256_fmadd_ps(value, factor, addend);
  }
  for (const auto& value : chain) sink += _mm256_cvtss_f32(value);
  return kFmaSteps * 10 * 8;
}

__attribute__((target("avx512f"))) uint64_t fma_avx512(float& sink) {
  __m512 chain[10];
  for (auto& value : chain) value = _mm512_set1_ps(sink);
  const __m512 factor = _mm512_set1_ps(0.999F);
  const __m512 addend = _mm512_set1_ps(0.001F);
  for (uint64_t step = 0; step < kFmaSteps; ++step) {
    for (auto& value : chain) value = _mm512_fmadd_ps(value, factor, addend);
  }
  for (const auto& value : chain) sink += _mm512_cvtss_f32(value);
  return kFmaSteps * 10 * 16;
}
#endif

uint64_t fma_plain(float& sink) {
  float chain[16];
  std::fill(std::begin(chain), std::end(chain), sink);
  for (uint64_t step = 0; step < kFmaSteps; ++step) {
    for (float& value : chain) value = value * 0.999F + 0.001F;
  }
  for (const float value : chain) sink += value;
  return kFmaSteps * 16;
}

uint64_t fma_widest(float& sink) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return fma_avx512(sink);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fma_avx2(sink);
#endif
  return fma_plain(sink);
}

}  // namespace

MachineRates measure_machine(uint32_t num_threads) {
  std::vector<std::vector<uint64_t>> buffers(num_threads);
  for (auto& buffer : buffers) buffer.assign(kReadBytesPerThread / sizeof(uint64_t), 1);
  std::vector<uint64_t> sums(num_threads, 0);
  const double read_s = best_seconds(num_threads, [&](uint32_t i) { sums[i] += read_all(buffers[i]); });

  std::vector<float> sinks(num_threads, 0.5F);
  std::vector<uint64_t> counts(num_threads, 0);
  const double fma_s = best_seconds(num_threads, [&](uint32_t i) {
    float sink = sinks[i];
    counts[i] = fma_widest(sink);
    sinks[i] = sink;
  });

  MachineRates rates;
  rates.read_bytes_per_s = static_cast<double>(kReadBytesPerThread) * num_threads / read_s;
  for (const uint64_t count : counts) rates.fma_per_s += static_cast<double>(count) / fma_s;
  // The sums are used, so that no compiler can drop the loops.
  if (sums.front() == 0 || !std::isfinite(sinks.front())) rates.read_bytes_per_s = 0;
  return rates;
}

}  // namespace megamoe::cli
