// The threads of one rank: a generation counter wakes them, a busy counter joins them.
#include "backends/cpu/workers.h"

#include <utility>

namespace megamoe::cpu {

Workers::Workers(uint32_t num_workers) {
  threads_.reserve(num_workers);
  for (uint32_t worker_idx = 0; worker_idx < num_workers; ++worker_idx)
    threads_.emplace_back([this, worker_idx] { run(worker_idx); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void Workers::start(std::function<void(uint32_t)> job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
    num_busy_ = num_workers();
    ++generation_;
  }
  wake_.notify_all();
}

void Workers::join() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return num_busy_ == 0; });
}

void Workers::run(uint32_t worker_idx) {
  uint64_t seen_generation = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen_generation; });
      if (stop_) return;
      seen_generation = generation_;
    }
    job_(worker_idx);  // not replaced before every worker has returned from it
    const std::lock_guard lock(mutex_);
    if (--num_busy_ == 0) idle_.notify_all();
  }
}

}  // namespace megamoe::cpu
