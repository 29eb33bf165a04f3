// A protocol machine whose every operation is a point where the deterministic scheduler may switch, and which can break
// one signal in one way. Memory order is sequential here; what a relaxed order would do is for ThreadSanitizer to find.
#pragma once

#include <type_traits>
#include <vector>

#include "mutation.h"
#include "protocol/machine.h"
#include "protocol/rank_view.h"
#include "scheduler.h"

namespace megamoe::test {

/// What the machine does, for one mutation; not a template, so that the many instantiations of the roles stay small.
class MachineCore {
 public:
  MachineCore(Scheduler& scheduler, const protocol::RankView& view, uint32_t epoch, protocol::Role role,
              Mutation mutation)
      : scheduler_(&scheduler), view_(&view), epoch_(epoch), role_(role), mutation_(mutation) {}

  void copy(void* to, const void* from, uint64_t num_bytes);
  void clean_idle_bank(const protocol::RankView& view, const protocol::Call& call);
  void clear_absent_ranges(const protocol::RankView& view, const protocol::Call& call);
  void relax(uint32_t) { scheduler_->pause(); }
  uint64_t now_ns() { return scheduler_->now_ns(); }

 protected:
  void store(Signal signal, uint32_t* word, uint32_t value) { store_word(signal, word, value); }
  void store(Signal signal, uint64_t* word, uint64_t value) { store_word(signal, word, value); }
  uint32_t load(Signal signal, uint32_t* word) { return load_word(signal, word); }
  uint64_t load(Signal signal, uint64_t* word) { return load_word(signal, word); }
  /// Returns the value before the addition.
  uint32_t add(Signal signal, uint32_t* word, uint32_t amount);

 private:
  struct HeldBack {
    void* to;
    std::vector<char> bytes;
  };

  bool breaks(Break kind, Signal signal) const { return mutation_ == Mutation{kind, signal}; }
  template <class T>
  void store_word(Signal signal, T* word, T value);
  template <class T>
  T load_word(Signal signal, T* word);
  /// What a waiter wants to see.
  uint64_t awaited(Signal signal) const;
  /// A counter never exceeds what is counted.
  void check_bound(Signal signal, uint64_t value);
  uint64_t offset_of(const void* address) const;
  bool is_announced_by(Signal signal, const void* to) const;
  void write_held_back(Signal signal);

  Scheduler* scheduler_;
  const protocol::RankView* view_;
  uint32_t epoch_;
  protocol::Role role_;
  Mutation mutation_;
  std::vector<HeldBack> held_back_;
};

template <Mutation kMutation = Mutation{}>
class DeterministicMachine : public MachineCore {
 public:
  DeterministicMachine(Scheduler& scheduler, const protocol::RankView& view, uint32_t epoch, protocol::Role role)
      : MachineCore(scheduler, view, epoch, role, kMutation) {}

  template <Signal kSignal, class T>
  void store_release(T* word, std::type_identity_t<T> value) {
    store(kSignal, word, value);
  }
  template <Signal kSignal>
  void add_release(uint32_t* word, uint32_t amount) {
    (void)add(kSignal, word, amount);
  }
  template <Signal kSignal>
  uint32_t add_acq_rel(uint32_t* word, uint32_t amount) {
    return add(kSignal, word, amount);
  }
  template <Signal kSignal>
  uint32_t add_relaxed(uint32_t* word, uint32_t amount) {
    return add(kSignal, word, amount);
  }
  template <Signal kSignal, class T>
  T load_acquire(T* word) {
    return load(kSignal, word);
  }
};

static_assert(protocol::Machine<DeterministicMachine<>>);

}  // namespace megamoe::test
