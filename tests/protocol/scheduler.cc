// Fibers by ucontext; a run that fails unwinds every fiber, so nothing leaks between schedules.
#include "scheduler.h"

#include <bit>
#include <sstream>

namespace megamoe::test {
namespace {

Scheduler* entering = nullptr;  // makecontext passes only integers; one thread runs all schedules

}  // namespace

std::string Choices::text() const {
  if (seed != 0) return "seed " + std::to_string(seed);
  if (deviations.empty()) return "default";
  std::string text;
  for (const Deviation& d : deviations)
    text += (text.empty() ? "" : " ") + std::to_string(d.step) + ":" + std::to_string(d.agent);
  return text;
}

Choices Choices::parse(const std::string& text) {
  Choices choices;
  if (text.starts_with("seed ")) {
    choices.seed = std::stoull(text.substr(5));
  } else if (text != "default") {
    std::istringstream in(text);
    Deviation d;
    char colon = 0;
    while (in >> d.step >> colon >> d.agent) choices.deviations.push_back(d);
  }
  return choices;
}

void Scheduler::add_agent(std::string name, std::function<void()> body) {
  auto agent = std::make_unique<Agent>();
  agent->name = std::move(name);
  agent->body = std::move(body);
  agent->stack.reset(new char[kStackBytes]);
  agents_.push_back(std::move(agent));
}

std::string Scheduler::run(const Choices& choices) {
  choices_ = choices;
  next_deviation_ = 0;
  random_ = choices.seed;
  num_steps_ = 0;
  version_ = 0;
  now_ns_ = 0;
  stopping_ = false;
  failure_.clear();
  others_.assign(1, 0);
  for (const auto& agent : agents_) {
    agent->started = agent->done = agent->paused = agent->looking = false;
    getcontext(&agent->context);
    agent->context.uc_stack.ss_sp = agent->stack.get();
    agent->context.uc_stack.ss_size = kStackBytes;
    agent->context.uc_link = nullptr;
    makecontext(&agent->context, &Scheduler::enter, 0);
  }
  entering = this;
  current_ = 0;
  agents_[0]->started = true;
  swapcontext(&main_, &agents_[0]->context);
  return failure_;
}

void Scheduler::enter() {
  Scheduler& self = *entering;
  Agent& agent = *self.agents_[self.current_];
  try {
    agent.body();
  } catch (const Stopped&) {
  }
  agent.done = true;
  self.changed();
  self.leave();
}

void Scheduler::leave() {
  if (!stopping_) {
    uint32_t next = next_runnable(current_);
    if (next == num_agents()) {
      for (const auto& agent : agents_)
        if (!agent->done && failure_.empty()) failure_ = deadlock_text();
      stopping_ = true;
    } else {
      switch_to(next);
    }
  }
  // Unwind whoever is still inside; agents that never started have nothing to unwind.
  for (uint32_t i = 0; i < num_agents(); ++i)
    if (agents_[i]->started && !agents_[i]->done) switch_to(i);
  setcontext(&main_);
}

uint32_t Scheduler::next_runnable(uint32_t after) const {
  for (uint32_t n = 1; n <= num_agents(); ++n) {
    const uint32_t i = (after + n) % num_agents();
    if (can_run(*agents_[i])) return i;
  }
  return num_agents();
}

uint32_t Scheduler::runnable_others() const {
  uint32_t bits = 0;
  for (uint32_t i = 0; i < num_agents(); ++i)
    if (i != current_ && can_run(*agents_[i])) bits |= 1u << i;
  return bits;
}

uint64_t Scheduler::next_random() {
  random_ += 0x9e3779b97f4a7c15u;
  uint64_t x = random_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint32_t Scheduler::choose() {
  const uint32_t others = others_.back();
  if (choices_.seed != 0) {
    if (others == 0 || next_random() % 4 != 0) return current_;
    uint32_t bits = others;
    for (uint64_t skip = next_random() % static_cast<uint64_t>(std::popcount(bits)); skip > 0; --skip) bits &= bits - 1;
    return static_cast<uint32_t>(std::countr_zero(bits));
  }
  if (next_deviation_ == choices_.deviations.size()) return current_;
  const Deviation& d = choices_.deviations[next_deviation_];
  if (d.step != num_steps_) return current_;
  ++next_deviation_;
  return (others >> d.agent & 1) != 0 ? d.agent : current_;
}

void Scheduler::switch_to(uint32_t agent) {
  const uint32_t from = current_;
  current_ = agent;
  agents_[agent]->paused = false;
  agents_[agent]->started = true;
  swapcontext(&agents_[from]->context, &agents_[agent]->context);
}

void Scheduler::step() {
  if (stopping_) throw Stopped{};
  if (++num_steps_ > kMaxSteps) fail("no end after " + std::to_string(kMaxSteps) + " steps");
  others_.push_back(runnable_others());
  const uint32_t next = choose();
  if (next == current_) return;
  switch_to(next);
  if (stopping_) throw Stopped{};
}

void Scheduler::look(const char* what, uint64_t index) {
  Agent& agent = *agents_[current_];
  if (!agent.looking) {
    agent.looking = true;
    agent.look_version = version_;
  }
  agent.look_what = what;
  agent.look_index = index;
}

void Scheduler::pause() {
  if (stopping_) throw Stopped{};
  if (++num_steps_ > kMaxSteps) fail("no end after " + std::to_string(kMaxSteps) + " steps");
  Agent& agent = *agents_[current_];
  agent.paused = true;
  others_.push_back(runnable_others());
  uint32_t next = choose();
  if (next == current_) next = next_runnable(current_);
  if (next == num_agents()) {
    if (!time_passes_) fail(deadlock_text());
    now_ns_ += kTickNs;
    changed();
    next = next_runnable(current_);
  }
  if (next != current_) switch_to(next);
  agent.paused = false;
  agent.looking = false;
  if (stopping_) throw Stopped{};
}

void Scheduler::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
  stopping_ = true;
  throw Stopped{};
}

std::string Scheduler::deadlock_text() const {
  std::string text = "deadlock:";
  for (const auto& agent : agents_)
    if (!agent->done)
      text += " " + agent->name + " waits for " + agent->look_what + "[" + std::to_string(agent->look_index) + "];";
  return text;
}

}  // namespace megamoe::test
