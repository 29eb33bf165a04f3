// A CPU thread as a protocol machine: std::atomic_ref on the workspace words, memcpy, yield, the steady clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "protocol/machine.h"

namespace megamoe::cpu {

/// Tests run the same roles on machines that weaken, drop, double, delay or schedule one of these operations.
class Machine {
 public:
  using Signal = protocol::Signal;

  template <Signal kSignal, class T>
  void store_release(T* word, std::type_identity_t<T> value) {
    std::atomic_ref<T>(*word).store(value, std::memory_order_release);
  }

  template <Signal kSignal>
  void add_release(uint32_t* word, uint32_t amount) {
    std::atomic_ref<uint32_t>(*word).fetch_add(amount, std::memory_order_release);
  }

  template <Signal kSignal, class T>
  T load_acquire(T* word) {
    return std::atomic_ref<T>(*word).load(std::memory_order_acquire);
  }

  template <Signal kSignal>
  uint32_t add_acq_rel(uint32_t* word, uint32_t amount) {
    return std::atomic_ref<uint32_t>(*word).fetch_add(amount, std::memory_order_acq_rel);
  }

  template <Signal kSignal>
  uint32_t add_relaxed(uint32_t* word, uint32_t amount) {
    return std::atomic_ref<uint32_t>(*word).fetch_add(amount, std::memory_order_relaxed);
  }

  void copy(void* to, const void* from, uint64_t num_bytes) { std::memcpy(to, from, num_bytes); }

  /// Spins shortly, then gives the processor away, then sleeps: more ranks than cores must still progress.
  void relax(uint32_t spins) {
    constexpr uint32_t kSpins = 64;
    constexpr uint32_t kYields = 4096;
    if (spins < kSpins) return;
    if (spins < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  uint64_t now_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }
};

static_assert(protocol::Machine<Machine>);

}  // namespace megamoe::cpu
