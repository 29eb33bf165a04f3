// Runs one function per rank of a group, on any transport, and brings back what each rank said.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megamoe/process_group.h"
#include "megamoe/symmetric_memory.h"

namespace megamoe::test {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kMillisecond = 1'000'000;

uint64_t now_ns();

/// A folder of mode 0700 that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  size_t num_entries() const;  ///< At all depths.

 private:
  std::string path_;
};

/// A process that runs `body` and ends; what it returns comes back through a pipe. Still running at the end of the
/// object: killed.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  void signal(int number) const;
  /// "killed by signal 9" where it did not end by itself, "still running after <n> ms" where it did not end at all.
  std::string wait(uint64_t timeout_ns = 60 * kSecond);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int read_end_ = -1;
};

/// Ranks that are processes tell the test that they have come to a point.
class Checkpoint {
 public:
  Checkpoint();
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  void reach() const;
  /// False where fewer than `count` processes came within 20 s.
  bool wait_for(size_t count) const;

 private:
  int ends_[2];
};

/// Stand-in: a GPU group over memory files (tests/support/stand_in_gpu.h). Cuda: on this machine's GPUs, in turn.
enum class Transport { kThreads, kProcesses, kStandInThreads, kStandInProcesses, kCudaThreads, kCudaProcesses };

bool is_threads(Transport transport);
bool is_cuda(Transport transport);
/// "threads", "cuda_processes", ...
std::string label_of(Transport transport);
/// What SymmetricMemory::transport() says for ranks that share one GPU, where it is one.
std::string_view transport_text(Transport transport);
/// Why the transport cannot be tried here; empty where it can. Looks for a GPU in a process of its own.
std::string reason_to_skip(Transport transport);

/// Bytes of a group's memory, wherever it lies.
void write_bytes(std::byte* at, const void* bytes, size_t count);
void read_bytes(const std::byte* at, void* bytes, size_t count);
inline void write_byte(std::byte* at, std::byte value) { write_bytes(at, &value, 1); }
inline std::byte read_byte(const std::byte* at) {
  std::byte value{};
  read_bytes(at, &value, 1);
  return value;
}

/// What one rank does with its membership. The reference may be reset: that leaves the group.
using RankBody = std::function<std::string(std::shared_ptr<SymmetricMemory>& memory)>;

/// Every rank's answer, by rank; a rank that cannot join answers with its error.
std::vector<std::string> run_ranks(Transport transport, uint32_t num_ranks, const RankBody& body);

/// Joins and runs `body` in this process; the error's text where it cannot join.
std::string run_as_rank(const ProcessGroupOptions& options, const RankBody& body,
                        Transport transport = Transport::kProcesses);

/// "ok", or "<code>: <message>".
std::string text_of(const Status& status);

}  // namespace megamoe::test
