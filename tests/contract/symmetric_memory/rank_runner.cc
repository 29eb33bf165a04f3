// Threads, or forked processes that report through pipes; nothing here waits without a deadline.
#include "rank_runner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "comm/gpu_groups.h"
#include "gpu_bytes.h"
#include "support/stand_in_gpu.h"

namespace megamoe::test {
namespace {

/// Of this process; set once, in the process of the ranks.
bool memory_is_on_gpu = false;

StandInGpu& stand_in() {
  static StandInGpu driver;
  return driver;
}

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_threads(Transport transport, uint32_t num_ranks) {
  if (transport == Transport::kThreads) return make_thread_group(num_ranks);
  memory_is_on_gpu = transport == Transport::kCudaThreads;
  std::vector<int32_t> devices;
  for (uint32_t rank = 0; rank < num_ranks; ++rank)
    devices.push_back(static_cast<int32_t>(rank % (memory_is_on_gpu ? num_gpus() : 2)));
  return memory_is_on_gpu ? make_cuda_thread_group(devices) : comm::make_gpu_thread_group(stand_in(), devices);
}

Result<std::shared_ptr<SymmetricMemory>> join_as(Transport transport, const ProcessGroupOptions& options) {
  if (transport == Transport::kProcesses) return join_process_group(options);
  if (transport == Transport::kStandInProcesses)
    return comm::join_gpu_process_group(stand_in(), options, static_cast<int32_t>(options.rank % 2));
  memory_is_on_gpu = true;
  const uint32_t gpu = options.rank % std::max(num_gpus(), 1u);
  use_gpu(gpu);
  return join_cuda_process_group(options, static_cast<int32_t>(gpu));
}

std::vector<std::string> run_threads(Transport transport, uint32_t num_ranks, const RankBody& body) {
  std::vector<std::string> answers(num_ranks);
  Result<std::vector<std::shared_ptr<SymmetricMemory>>> group = make_threads(transport, num_ranks);
  if (!group.ok()) return std::vector<std::string>(num_ranks, text_of(group.status()));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&answers, &body, rank, memory = std::move(group.value()[rank])]() mutable {
      answers[rank] = body(memory);
      memory.reset();
    });
  for (std::thread& thread : threads) thread.join();
  return answers;
}

/// A process that has used CUDA must not fork, so threads on a GPU get a process of their own.
std::vector<std::string> run_cuda_threads(uint32_t num_ranks, const RankBody& body) {
  constexpr char kEnd = '\x1f';
  Child child([&] {
    std::string all;
    for (const std::string& answer : run_threads(Transport::kCudaThreads, num_ranks, body)) all += answer + kEnd;
    return all;
  });
  std::string text = child.wait();
  std::vector<std::string> answers;
  for (size_t begin = 0; answers.size() < num_ranks;) {
    const size_t end = std::min(text.find(kEnd, begin), text.size());
    answers.push_back(text.substr(std::min(begin, text.size()), end - std::min(begin, text.size())));
    begin = end + 1;
  }
  return answers;
}

}  // namespace

bool is_threads(Transport transport) {
  return transport == Transport::kThreads || transport == Transport::kStandInThreads ||
         transport == Transport::kCudaThreads;
}

bool is_cuda(Transport transport) {
  return transport == Transport::kCudaThreads || transport == Transport::kCudaProcesses;
}

std::string label_of(Transport transport) {
  constexpr const char* kLabels[] = {"threads",      "processes",     "stand_in_threads", "stand_in_processes",
                                     "cuda_threads", "cuda_processes"};
  return kLabels[static_cast<size_t>(transport)];
}

std::string_view transport_text(Transport transport) {
  if (transport == Transport::kThreads) return "threads";
  if (transport == Transport::kProcesses) return "processes";
  return is_threads(transport) ? "threads on " : "processes on GPUs";
}

std::string reason_to_skip(Transport transport) {
  if (!is_cuda(transport)) return "";
  static const std::string kAnswer = Child([] { return text_of(comm::cuda_driver("this test").status()); }).wait();
  return kAnswer == "ok" ? "" : kAnswer;
}

void write_bytes(std::byte* at, const void* bytes, size_t count) {
  memory_is_on_gpu ? copy_gpu_bytes(at, bytes, count) : static_cast<void>(std::memcpy(at, bytes, count));
}

void read_bytes(const std::byte* at, void* bytes, size_t count) {
  memory_is_on_gpu ? copy_gpu_bytes(bytes, at, count) : static_cast<void>(std::memcpy(bytes, at, count));
}

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

TempFolder::TempFolder() {
  char path[] = "/tmp/megamoe_test_XXXXXX";
  if (::mkdtemp(path) == nullptr) std::abort();
  path_ = path;
}

TempFolder::~TempFolder() { std::filesystem::remove_all(path_); }

size_t TempFolder::num_entries() const {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::recursive_directory_iterator(path_)) ++count;
  return count;
}

Child::Child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  pid_ = ::fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {
    ::close(ends[0]);
    const std::string text = body();
    const bool is_written = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(is_written ? 0 : 1);
  }
  ::close(ends[1]);
  read_end_ = ends[0];
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), read_end_(std::exchange(other.read_end_, -1)) {}

Child::~Child() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (read_end_ >= 0) ::close(read_end_);
}

void Child::signal(int number) const { ::kill(pid_, number); }

std::string Child::wait(uint64_t timeout_ns) {
  const uint64_t deadline_ns = now_ns() + timeout_ns;
  std::string text;
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) return "still running after " + std::to_string(timeout_ns / kMillisecond) + " ms";
    pollfd polled{read_end_, POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>((deadline_ns - now) / kMillisecond + 1)) <= 0) continue;
    char buffer[65536];
    const ssize_t got = ::read(read_end_, buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return text + " (exit " + std::to_string(WEXITSTATUS(status)) + ")";
  return text;
}

Checkpoint::Checkpoint() {
  if (::pipe2(ends_, O_CLOEXEC) != 0) std::abort();
}

Checkpoint::~Checkpoint() {
  ::close(ends_[0]);
  ::close(ends_[1]);
}

void Checkpoint::reach() const {
  if (::write(ends_[1], "x", 1) != 1) std::abort();
}

bool Checkpoint::wait_for(size_t count) const {
  const uint64_t deadline_ns = now_ns() + 20 * kSecond;
  while (count > 0 && now_ns() < deadline_ns) {
    pollfd polled{ends_[0], POLLIN, 0};
    char byte = 0;
    if (::poll(&polled, 1, 100) == 1 && ::read(ends_[0], &byte, 1) == 1) --count;
  }
  return count == 0;
}

std::string text_of(const Status& status) {
  return status.ok() ? "ok" : std::string(name(status.code())) + ": " + status.message();
}

std::string run_as_rank(const ProcessGroupOptions& options, const RankBody& body, Transport transport) {
  Result<std::shared_ptr<SymmetricMemory>> joined = join_as(transport, options);
  if (!joined.ok()) return text_of(joined.status());
  std::shared_ptr<SymmetricMemory> memory = std::move(joined).value();
  return body(memory);
}

std::vector<std::string> run_ranks(Transport transport, uint32_t num_ranks, const RankBody& body) {
  if (transport == Transport::kCudaThreads) return run_cuda_threads(num_ranks, body);
  if (is_threads(transport)) return run_threads(transport, num_ranks, body);
  std::vector<std::string> answers(num_ranks);
  const TempFolder folder;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < num_ranks; ++rank)
    children.emplace_back([&] {
      return run_as_rank({rank, num_ranks, "contract", folder.path(), 20 * kSecond}, body, transport);
    });
  for (uint32_t rank = 0; rank < num_ranks; ++rank) answers[rank] = children[rank].wait();
  if (folder.num_entries() != 0) answers[0] += " (the rendezvous folder is not empty)";
  return answers;
}

}  // namespace megamoe::test
