// A progress line on stderr while long work runs; silent where stderr is not a terminal.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace megamoe::cli {

/// Draws "label [####....] 42/128  3.1 s" ten times a second and erases it at the end.
class Progress {
 public:
  /// @param total  units of work; 0 where only the time can be shown
  Progress(std::string label, uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// No line from now on: another process of the same run draws it.
  static void silence();

  /// From any thread: `count` more units are done.
  void advance(uint64_t count = 1) { done_.fetch_add(count, std::memory_order_relaxed); }

 private:
  void draw(double seconds) const;

  std::string label_;
  uint64_t total_;
  std::atomic<uint64_t> done_{0};
  std::jthread drawer_;
};

}  // namespace megamoe::cli
