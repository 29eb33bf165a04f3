// Random delays before every signal of the full configuration change no bit of any result.
#include <atomic>
#include <chrono>
#include <thread>

#include "cpu_group.h"

namespace megamoe::test {
namespace {

using protocol::Signal;

std::atomic<uint64_t> delay_seed{0};

/// Sleeps 0 to 200 us before it raises a signal, or not at all.
void delay() {
  thread_local uint64_t state = splitmix64(std::hash<std::thread::id>{}(std::this_thread::get_id()));
  state = splitmix64(state ^ delay_seed.load(std::memory_order_relaxed));
  if (state % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(state / 2 % 200));
}

class DelayedMachine : public cpu::Machine {
 public:
  template <Signal kSignal, class T>
  void store_release(T* word, std::type_identity_t<T> value) {
    delay();
    cpu::Machine::store_release<kSignal>(word, value);
  }
  template <Signal kSignal>
  void add_release(uint32_t* word, uint32_t amount) {
    delay();
    cpu::Machine::add_release<kSignal>(word, amount);
  }
  template <Signal kSignal>
  uint32_t add_acq_rel(uint32_t* word, uint32_t amount) {
    delay();
    return cpu::Machine::add_acq_rel<kSignal>(word, amount);
  }
  template <Signal kSignal>
  uint32_t add_relaxed(uint32_t* word, uint32_t amount) {
    delay();
    return cpu::Machine::add_relaxed<kSignal>(word, amount);
  }
};

TEST(Delays, ChangeNoBit) {
  constexpr uint32_t kNumRanks = 4, kNumCalls = 200, kNumInputs = 10;
  const MoeShape shape{256, 192, 8, 2};
  const TestWeights weights = gen_weights(shape, 3);
  LayerConfig config = small_config(shape, 40);
  config.num_threads = 2;
  config.block_rows = 8;
  config.unit_blocks = 1;
  config.token_ring_blocks = config.act_ring_blocks = 2;
  std::vector<std::vector<TestTokens>> inputs;
  for (uint32_t i = 0; i < kNumInputs; ++i) {
    inputs.push_back({});
    for (uint32_t rank = 0; rank < kNumRanks; ++rank)
      inputs.back().push_back(gen_tokens(shape, splitmix64(i * kNumRanks + rank) % 24, 100 + i * kNumRanks + rank));
  }
  CpuGroup<cpu::Machine> sound(config, kNumRanks, weights);
  const auto expected = sound.forward_all(inputs);

  CpuGroup<DelayedMachine> delayed(config, kNumRanks, weights);
  std::vector<std::vector<TestTokens>> calls;
  for (uint32_t call = 0; call < kNumCalls; ++call) calls.push_back(inputs[call % kNumInputs]);
  delay_seed = 1;
  const auto outputs = delayed.forward_all(calls);
  for (uint32_t call = 0; call < kNumCalls; ++call)
    ASSERT_TRUE(same_bits(expected[call % kNumInputs], outputs[call])) << "call " << call;
}

}  // namespace
}  // namespace megamoe::test
