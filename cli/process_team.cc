// A pipe brings each rank's status back; signals wake the parent, so that nothing is polled while all is well.
#include "cli/process_team.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "cli/progress.h"
#include "cli/stopwatch.h"

namespace megamoe::cli {
namespace {

constexpr uint64_t kGraceNs = 1'500'000'000;
constexpr size_t kMaxReportBytes = 32768;  // Fits a pipe, so that a rank never blocks on it.

struct RankProcess {
  pid_t pid = 0;
  int report = -1;  ///< The read end of its pipe.
  bool is_running = false;
  bool was_ended_here = false;
  int wait_status = 0;
  Status status;  ///< What it told; ok where it told nothing.
};

/// A name that no other run has; rank 0 creates the folder and removes it once all ranks have met.
std::string new_rendezvous_dir() {
  std::string base = "/tmp";
  for (const char* variable : {"TMPDIR", "MEGAMOE_RENDEZVOUS"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && value[0] == '/') base = value;
  }
  std::random_device random;
  return fmt::format("{}/megamoe-run-{}-{:08x}{:08x}", base, ::getpid(), random(), random());
}

/// Blocks the signals that the parent waits for; gives the old mask back.
class SignalMask {
 public:
  SignalMask() {
    ::signal(SIGCHLD, SIG_DFL);  // Where it was ignored, ended processes could not be waited for.
    sigemptyset(&waited_);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&waited_, number);
    ::sigprocmask(SIG_BLOCK, &waited_, &saved_);
  }
  ~SignalMask() { restore(); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;

  void restore() const { ::sigprocmask(SIG_SETMASK, &saved_, nullptr); }

  /// The next of them, or 0 after `timeout_ms`.
  int wait(long timeout_ms) const {
    const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000};
    return std::max(::sigtimedwait(&waited_, nullptr, &timeout), 0);
  }

 private:
  sigset_t waited_{};
  sigset_t saved_{};
};

/// The child's whole life.
[[noreturn]] void be_rank(const ProcessGroupOptions& group, pid_t parent, int report,
                          const std::function<Result<Verdict>(ProcessGroupOptions)>& work) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(static_cast<int>(Verdict::kRuntimeError));
  if (group.rank != 0) Progress::silence();
  Result<Verdict> result = Verdict::kRuntimeError;
  try {
    result = work(group);
  } catch (const std::exception& error) {
    result = Status(Code::kInternal, std::string("megamoe run: the system refused: ") + error.what());
  }
  if (!result.ok()) {
    std::string text = static_cast<char>(result.status().code()) + result.status().message();
    text.resize(std::min(text.size(), kMaxReportBytes));
    static_cast<void>(!::write(report, text.data(), text.size()));
  }
  std::fflush(nullptr);
  ::_exit(static_cast<int>(result.ok() ? result.value() : verdict_of(result.status())));
}

class ProcessTeam {
 public:
  explicit ProcessTeam(uint32_t num_ranks) : num_ranks_(num_ranks), rendezvous_dir_(new_rendezvous_dir()) {}
  ~ProcessTeam() {
    end_all();
    for (const RankProcess& process : processes_) ::close(process.report);
    std::error_code ignored;  // It is there only where the ranks did not get to meet.
    std::filesystem::remove_all(rendezvous_dir_, ignored);
  }
  ProcessTeam(const ProcessTeam&) = delete;
  ProcessTeam& operator=(const ProcessTeam&) = delete;

  Status start(const std::function<Result<Verdict>(ProcessGroupOptions)>& work) {
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) return cannot_start(rank, "raise the limit of open files (ulimit -n)");
      const pid_t pid = ::fork();
      if (pid == 0) {
        signals_.restore();
        be_rank({rank, num_ranks_, "megamoe run", rendezvous_dir_, {}}, parent, ends[1], work);
      }
      const int fork_error = errno;
      ::close(ends[1]);
      if (pid < 0) {
        ::close(ends[0]);
        errno = fork_error;
        return cannot_start(rank, "raise the limit of processes (ulimit -u) or take fewer ranks");
      }
      processes_.push_back({pid, ends[0], true, false, 0, {}});
    }
    return {};
  }

  /// Until all have ended. A signal that ends this process ends the ranks first.
  void wait() {
    uint64_t deadline_ns = 0;
    while (num_running() > 0) {
      constexpr long kTickMs = 100;
      constexpr long kLongMs = 60'000;
      const int signal = signals_.wait(deadline_ns == 0 ? kLongMs : kTickMs);
      if (signal != 0 && signal != SIGCHLD) end_with(signal);
      for (RankProcess& process : processes_) reap(process, WNOHANG);
      if (deadline_ns == 0 && any_failed()) deadline_ns = steady_ns() + kGraceNs;
      if (deadline_ns != 0 && steady_ns() >= deadline_ns) end_all();
    }
  }

  /// After wait().
  Result<Verdict> outcome() const {
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      const RankProcess& process = processes_[rank];
      if (!WIFSIGNALED(process.wait_status) || process.was_ended_here) continue;
      const int number = WTERMSIG(process.wait_status);
      return Status(
          Code::kPeerFailed,
          fmt::format("megamoe run --processes: every rank must end by itself, rank {} (pid {}) was killed by "
                      "signal {} ({}); where nobody sent it, look for lack of memory in the kernel's log",
                      rank, process.pid, number, ::strsignal(number)));
    }
    const Status* cause = nullptr;
    for (const RankProcess& process : processes_) {
      if (process.status.ok()) continue;
      if (cause == nullptr || (cause->code() == Code::kPeerFailed && process.status.code() != Code::kPeerFailed))
        cause = &process.status;
    }
    if (cause != nullptr) return *cause;
    for (uint32_t rank = 1; rank < num_ranks_; ++rank) {
      if (processes_[rank].wait_status == 0) continue;
      return Status(Code::kPeerFailed,
                    fmt::format("megamoe run --processes: every rank must end with exit code 0 or a reason, rank {} "
                                "ended with {} and none; report this",
                                rank, WEXITSTATUS(processes_[rank].wait_status)));
    }
    return static_cast<Verdict>(WEXITSTATUS(processes_[0].wait_status));
  }

  /// Whether rank 0 came to its end and printed what it had to.
  bool rank0_has_printed() const {
    return processes_[0].status.ok() && WIFEXITED(processes_[0].wait_status) &&
           WEXITSTATUS(processes_[0].wait_status) <= static_cast<int>(Verdict::kMismatch);
  }

 private:
  Status cannot_start(uint32_t rank, std::string_view advice) const {
    return {Code::kOutOfMemory, fmt::format("megamoe run --processes: a process must start for rank {}, got: {}; {}",
                                            rank, std::strerror(errno), advice)};
  }

  size_t num_running() const {
    return static_cast<size_t>(
        std::count_if(processes_.begin(), processes_.end(), [](const auto& process) { return process.is_running; }));
  }

  bool any_failed() const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](const auto& process) { return !process.is_running && process.wait_status != 0; });
  }

  static void reap(RankProcess& process, int flags) {
    if (!process.is_running) return;
    pid_t found = 0;
    do found = ::waitpid(process.pid, &process.wait_status, flags);
    while (found < 0 && errno == EINTR);
    if (found == 0) return;
    process.is_running = false;
    std::string text(kMaxReportBytes, '\0');
    const ssize_t num_read = ::read(process.report, text.data(), text.size());  // At once: its writer is gone.
    if (num_read <= 0) return;
    process.status = {static_cast<Code>(text[0]), text.substr(1, static_cast<size_t>(num_read) - 1)};
  }

  void end_all() {
    for (RankProcess& process : processes_) {
      if (!process.is_running) continue;
      process.was_ended_here = true;
      ::kill(process.pid, SIGKILL);
      reap(process, 0);
    }
  }

  [[noreturn]] void end_with(int signal) {
    end_all();
    std::error_code ignored;
    std::filesystem::remove_all(rendezvous_dir_, ignored);
    ::signal(signal, SIG_DFL);
    signals_.restore();
    ::raise(signal);
    ::_exit(static_cast<int>(Verdict::kRuntimeError));  // The caller had blocked it.
  }

  const uint32_t num_ranks_;
  const std::string rendezvous_dir_;
  const SignalMask signals_;
  std::vector<RankProcess> processes_;
};

}  // namespace

Result<Verdict> run_process_team(uint32_t num_ranks, const std::function<Result<Verdict>(ProcessGroupOptions)>& work) {
  ProcessTeam team(num_ranks);
  MEGAMOE_RETURN_IF_ERROR(team.start(work));
  team.wait();
  auto outcome = team.outcome();
  // The answer is out: what failed afterwards must not become a second one.
  if (!outcome.ok() && team.rank0_has_printed()) return report_failure("run", outcome.status(), false);
  return outcome;
}

}  // namespace megamoe::cli
