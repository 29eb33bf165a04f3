// One instantiation of the CPU backend per mutant.
#include "order_mutants.h"

#include <cstdio>
#include <utility>

#include "cpu_group.h"
#include "mutants.h"

namespace megamoe::test {
namespace {

template <Mutation kMutation>
class WeakMachine : public cpu::Machine {
 public:
  template <Signal kSignal, class T>
  void store_release(T* word, std::type_identity_t<T> value) {
    std::atomic_ref<T>(*word).store(value,
                                    weakens_release(kSignal) ? std::memory_order_relaxed : std::memory_order_release);
  }
  template <Signal kSignal>
  void add_release(uint32_t* word, uint32_t amount) {
    std::atomic_ref<uint32_t>(*word).fetch_add(
        amount, weakens_release(kSignal) ? std::memory_order_relaxed : std::memory_order_release);
  }
  template <Signal kSignal, class T>
  T load_acquire(T* word) {
    return std::atomic_ref<T>(*word).load(weakens_acquire(kSignal) ? std::memory_order_relaxed
                                                                   : std::memory_order_acquire);
  }
  template <Signal kSignal>
  uint32_t add_acq_rel(uint32_t* word, uint32_t amount) {
    return std::atomic_ref<uint32_t>(*word).fetch_add(amount, weakens_release(kSignal)   ? std::memory_order_acquire
                                                              : weakens_acquire(kSignal) ? std::memory_order_release
                                                                                         : std::memory_order_acq_rel);
  }

 private:
  static constexpr bool weakens_release(Signal signal) { return kMutation == Mutation{Break::kReleaseRelaxed, signal}; }
  static constexpr bool weakens_acquire(Signal signal) { return kMutation == Mutation{Break::kAcquireRelaxed, signal}; }
};

/// Calls on two ranks; small rings reuse slots within a call, large ones leave no order but the one under test.
template <Mutation kMutation>
bool run_calls(const TestWeights& weights, uint32_t ring_blocks) {
  constexpr uint32_t kNumRanks = 2, kNumCalls = 6;
  LayerConfig config = small_config(weights.shape, 40);
  config.num_threads = 2;
  config.block_rows = 8;
  config.unit_blocks = 1;
  config.token_ring_blocks = config.act_ring_blocks = ring_blocks;
  CpuGroup<WeakMachine<kMutation>> group(config, kNumRanks, weights);
  std::vector<std::vector<TestTokens>> calls;
  for (uint32_t call = 0; call < kNumCalls; ++call) {
    calls.push_back({});
    for (uint32_t rank = 0; rank < kNumRanks; ++rank)
      calls.back().push_back(gen_tokens(weights.shape, 24 + 8 * ((call + rank) % 3), 10 + call * kNumRanks + rank));
  }
  const auto outputs = group.forward_all(calls);
  for (const auto& call : outputs)
    for (const RankOutput& output : call)
      if (!output.status.ok()) return false;
  return true;
}

/// One rank never calls: the error record travels.
template <Mutation kMutation>
bool run_timeout(const TestWeights& weights) {
  constexpr uint32_t kNumRanks = 4;
  LayerConfig config = small_config(weights.shape, 40);
  config.num_threads = 1;
  config.timeout_ns = 50'000'000;
  CpuGroup<WeakMachine<kMutation>> group(config, kNumRanks, weights);
  const TestTokens tokens = gen_tokens(weights.shape, 8, 5);
  std::vector<RankOutput> outputs(kNumRanks);
  (void)on_each_rank(kNumRanks - 1, [&](uint32_t rank) { return group.forward(rank, tokens, outputs[rank]); });
  for (uint32_t rank = 0; rank + 1 < kNumRanks; ++rank)
    if (outputs[rank].status.ok()) return false;
  return true;
}

template <Mutation kMutation>
int run_one() {
  const TestWeights weights = gen_weights({256, 192, 4, 2}, 3);
  const bool right =
      run_calls<kMutation>(weights, 1) && run_calls<kMutation>(weights, 64) && run_timeout<kMutation>(weights);
  return right ? 0 : 1;
}

}  // namespace

int run_order_mutant(size_t index) {
  if (index == kSound) return run_one<Mutation{}>();
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    constexpr std::array kRuns{&run_one<kOrderMutants[kIndex]>...};
    return kRuns[index]();
  }
  (std::make_index_sequence<kOrderMutants.size()>{});
}

}  // namespace megamoe::test
