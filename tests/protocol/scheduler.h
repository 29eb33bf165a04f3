// A deterministic scheduler: agents are fibers of one thread, and every switch between them is a recorded choice.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace megamoe::test {

/// At step `step`, run `agent` instead of the one that would go on.
struct Deviation {
  uint32_t step = 0;
  uint32_t agent = 0;
};

/// Everything that distinguishes one schedule from another: a list of deviations from the default order, or a seed.
struct Choices {
  std::vector<Deviation> deviations;  ///< Ascending steps.
  uint64_t seed = 0;                  ///< Not 0: switch at random instead.

  /// "seed 77", or "17:2 90:0" (step:agent), or "default".
  std::string text() const;
  static Choices parse(const std::string& text);
};

/// The default order: an agent runs until it has to wait; then the next one that can run.
class Scheduler {
 public:
  Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void add_agent(std::string name, std::function<void()> body);
  void clear_agents() { agents_.clear(); }
  /// Runs all agents to their end.
  /// @return empty, or what went wrong first; then all agents have been unwound
  std::string run(const Choices& choices);
  uint32_t num_steps() const { return num_steps_; }
  uint32_t num_agents() const { return static_cast<uint32_t>(agents_.size()); }
  /// After a run: the agents that could have been chosen at a step, as bits, without the one that ran.
  uint32_t others_at(uint32_t step) const { return others_[step]; }

  // For agents.

  /// A point where another agent may run. Before every access to what agents share.
  void step();
  /// This agent is about to read what others write; remembered until it pauses. `what` explains a deadlock.
  void look(const char* what, uint64_t index);
  /// Something was written that others may wait for.
  void changed() { ++version_; }
  /// What this agent looked for is not there: others run until something has changed since.
  void pause();
  /// Ends the run with this failure.
  [[noreturn]] void fail(const std::string& what);
  /// Waits for a condition of the test itself.
  template <class Condition>
  void wait_until(const char* what, Condition condition) {
    for (;;) {
      look(what, 0);
      if (condition()) return done_looking();
      pause();
    }
  }

  /// Virtual time. Where it may pass, it does so only when no agent can run; else that is a deadlock.
  uint64_t now_ns() const { return now_ns_; }
  void let_time_pass(bool on) { time_passes_ = on; }

 private:
  struct Stopped {};
  struct Agent {
    std::string name;
    std::function<void()> body;
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    bool started = false;
    bool done = false;
    bool paused = false;
    bool looking = false;
    uint64_t look_version = 0;
    const char* look_what = "";
    uint64_t look_index = 0;
  };

  static constexpr size_t kStackBytes = size_t{128} << 10;
  static constexpr uint32_t kMaxSteps = 50'000;
  static constexpr uint64_t kTickNs = 1'000'000;  ///< A waiter looks at the clock every 64 looks.

  static void enter();
  void done_looking() { agents_[current_]->looking = false; }
  bool can_run(const Agent& agent) const { return !agent.done && (!agent.paused || agent.look_version != version_); }
  uint32_t next_runnable(uint32_t after) const;
  uint32_t runnable_others() const;
  uint32_t choose();
  void switch_to(uint32_t agent);
  void leave();
  std::string deadlock_text() const;
  uint64_t next_random();

  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<uint32_t> others_;
  Choices choices_;
  size_t next_deviation_ = 0;
  uint64_t random_ = 0;
  uint32_t num_steps_ = 0;
  uint32_t current_ = 0;
  uint64_t version_ = 0;
  uint64_t now_ns_ = 0;
  bool time_passes_ = false;
  bool stopping_ = false;
  std::string failure_;
  ucontext_t main_{};
};

}  // namespace megamoe::test
