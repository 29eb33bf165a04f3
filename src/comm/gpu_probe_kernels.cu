// The probe on a GPU: plain stores released at system scope by the writer, acquired at system scope by the owner. One
// thread for each pair.
#include <cuda/atomic>

#include "comm/gpu_probe_kernels.h"

namespace megamoe::comm {
namespace {

using SystemFlag = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;

__device__ uint64_t global_ns() {
  uint64_t ns = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void tell_kernel(ProbeCall call) {
  const uint32_t owner = threadIdx.x;
  ProbeCell* const cell = call.cell(owner, call.rank);
  for (uint32_t i = 0; i < ProbeCell::kNumWords; ++i) cell->words[i] = probe_word(call.rank, owner, i);
  SystemFlag(cell->flag).store(probe_word(call.rank, owner, ProbeCell::kNumWords), cuda::memory_order_release);
}

__global__ void hear_kernel(ProbeCall call) {
  const uint32_t writer = threadIdx.x;
  ProbeCell* const cell = call.cell(call.rank, writer);
  const uint64_t start_ns = global_ns();
  uint64_t flag = 0;
  while ((flag = SystemFlag(cell->flag).load(cuda::memory_order_acquire)) == 0) {
    if (global_ns() - start_ns > call.timeout_ns) break;
    __nanosleep(500);
  }
  bool right = flag == probe_word(writer, call.rank, ProbeCell::kNumWords);
  for (uint32_t i = 0; i < ProbeCell::kNumWords; ++i)
    right = right && cell->words[i] == probe_word(writer, call.rank, i);
  const Heard heard = flag == 0 ? Heard::kNothing : right ? Heard::kAll : Heard::kWrong;
  call.verdicts()[writer] = static_cast<uint8_t>(heard);
}

}  // namespace

cudaError_t launch_tell(const ProbeCall& call, cudaStream_t stream) {
  tell_kernel<<<1, call.num_ranks, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t launch_hear(const ProbeCall& call, cudaStream_t stream) {
  hear_kernel<<<1, call.num_ranks, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace megamoe::comm
