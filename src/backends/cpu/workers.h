// The threads of one rank. They sleep between calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace megamoe::cpu {

class Workers {
 public:
  explicit Workers(uint32_t num_workers);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  uint32_t num_workers() const { return static_cast<uint32_t>(threads_.size()); }
  /// Starts job(worker_idx) on every worker. Precondition: the previous job has been joined.
  void start(std::function<void(uint32_t)> job);
  /// Waits until every worker has returned from the job.
  void join();

 private:
  void run(uint32_t worker_idx);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::function<void(uint32_t)> job_;
  uint64_t generation_ = 0;
  uint32_t num_busy_ = 0;
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace megamoe::cpu
