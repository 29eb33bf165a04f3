// The drawing thread of the progress line.
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <utility>

namespace megamoe::cli {
namespace {
std::atomic<bool> is_silent{false};
}  // namespace

void Progress::silence() { is_silent = true; }

Progress::Progress(std::string label, uint64_t total) : label_(std::move(label)), total_(total) {
  if (is_silent || isatty(STDERR_FILENO) == 0) return;
  drawer_ = std::jthread([this](const std::stop_token& stop) {
    const auto started = std::chrono::steady_clock::now();
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    bool drawn = false;
    while (!wake.wait_for(lock, stop, std::chrono::milliseconds(100), [&] { return stop.stop_requested(); })) {
      draw(std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
      drawn = true;
    }
    if (drawn) fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  });
}

Progress::~Progress() = default;

void Progress::draw(double seconds) const {
  if (total_ == 0) {
    fmt::print(stderr, "\r\033[K{} {:.1f} s", label_, seconds);
  } else {
    constexpr uint64_t kWidth = 30;
    const uint64_t done = std::min(done_.load(std::memory_order_relaxed), total_);
    const uint64_t filled = done * kWidth / total_;
    fmt::print(stderr, "\r\033[K{} [{:#<{}}{:.<{}}] {}/{}  {:.1f} s", label_, "", filled, "", kWidth - filled, done,
               total_, seconds);
  }
  std::fflush(stderr);
}

}  // namespace megamoe::cli
