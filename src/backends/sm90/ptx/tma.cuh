// Bulk copies between global and shared memory, with and without a tensor map. PTX ISA 9.7.9.25 "cp.async.bulk".
#pragma once

#include <cuda.h>

#include <cstdint>

namespace megamoe::sm90::ptx {

/// A box of a 2-D tensor into shared memory; its bytes count on `barrier`.
__device__ __forceinline__ void tma_load_2d(const CUtensorMap& map, uint32_t dst, uint32_t barrier, uint32_t x,
                                            uint32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

/// For what is read once: it leaves the L2 cache before everything else.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void tma_load_3d(const CUtensorMap& map, uint32_t dst, uint32_t barrier, uint32_t x,
                                            uint32_t y, uint32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void tma_load_3d(const CUtensorMap& map, uint32_t dst, uint32_t barrier, uint32_t x,
                                            uint32_t y, uint32_t z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_5d(const CUtensorMap& map, uint32_t dst, uint32_t barrier, uint32_t c0,
                                            uint32_t c1, uint32_t c2, uint32_t c3, uint32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
__device__ __forceinline__ void tma_load_5d(const CUtensorMap& map, uint32_t dst, uint32_t barrier, uint32_t c0,
                                            uint32_t c1, uint32_t c2, uint32_t c3, uint32_t c4, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

/// A box of shared memory into a 2-D tensor; belongs to the thread's open bulk group.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap& map, uint32_t src, uint32_t x, uint32_t y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(src),
               "r"(x), "r"(y)
               : "memory");
}

/// `bytes` contiguous bytes; all three a multiple of 16.
__device__ __forceinline__ void bulk_load(uint32_t dst, const void* src, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void bulk_store(void* dst, uint32_t src, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes)
               : "memory");
}

/// Closes the thread's open bulk group.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until at most kPending of this thread's groups still read shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until all but this thread's kPending newest groups have written everything: what they stored is then visible
/// to this thread.
template <int kPending = 0>
__device__ __forceinline__ void bulk_wait_written() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Orders this thread's ordinary accesses before its (or, after a release, another thread's) later bulk copies.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void proxy_fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace megamoe::sm90::ptx
