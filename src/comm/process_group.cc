// A member asks the coordinator in every collective call; its watcher thread carries the messages and watches the other
// processes' lifelines.
#include "comm/process_group.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

#include "comm/clock.h"
#include "comm/wire.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kGraceNs = 1'000 * kNsPerMs;         // For the coordinator's answer after the deadline.
constexpr uint64_t kHubVerdictNs = 500 * kNsPerMs;      // Between a lost connection and rank 0's lifeline.
constexpr std::chrono::milliseconds kLifelineLag{100};  // From a closed connection to the lifeline of its process.
constexpr uint64_t kGoodbyeNs = 200 * kNsPerMs;

bool contains(const std::vector<uint32_t>& ranks, uint32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

void Lifeline::say_goodbye() const {
  const char byte = 'g';
  static_cast<void>(!::write(write_end.get(), &byte, 1));
}

ProcessMember::ProcessMember(Joined joined, std::unique_ptr<ProcessMemory> memory)
    : joined_(std::move(joined)), memory_(std::move(memory)) {
  watcher_ = std::thread([this] { watch(); });
}

ProcessMember::~ProcessMember() {
  {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
    if (joined_.hub.is_open()) joined_.hub.queue({MessageKind::kGoodbye, {}, {}});
  }
  wake();
  watcher_.join();
  if (joined_.coordinator) joined_.coordinator->stop();  // Sends what others still wait for.
  joined_.own.say_goodbye();
}

std::string ProcessMember::describe(uint32_t rank) const {
  return rank < joined_.descriptions.size() ? joined_.descriptions[rank] : fmt::format("rank {}", rank);
}

void ProcessMember::wake() {
  const uint64_t one = 1;
  static_cast<void>(!::write(joined_.wake.get(), &one, sizeof(one)));
}

Status ProcessMember::broken_status_locked(Collective collective) const {
  const Code code = broken_.code() == Code::kPeerFailed ? Code::kPeerFailed : Code::kPoisoned;
  return {code,
          fmt::format("{}: the group is broken since an earlier event: {}", where(collective), broken_.message())};
}

void ProcessMember::break_locked(Code code, std::string reason) {
  if (broken_.ok()) broken_ = Status{code, std::move(reason)};
  changed_.notify_all();
}

Met ProcessMember::meet(Arrival arrival, std::shared_ptr<const Descriptor> descriptor) {
  const Collective collective = arrival.collective;
  const std::string what = arrival.what;
  const uint64_t timeout_ns = arrival.timeout_ns;
  const uint64_t left_ns = timeout_ns - std::min(arrival.spent_ns, timeout_ns);
  const uint64_t limit_ns = deadline_after(now_ns(), left_ns) + kGraceNs;
  std::unique_lock lock(mutex_);
  if (!broken_.ok()) return {{broken_status_locked(collective), {}, {}}, {}};
  if (is_waiting_)
    return {{{Code::kInvalidArgument,
              fmt::format("{}: one call at a time may be made on a rank, got a second one on rank {} at '{}'",
                          where(collective), joined_.rank, what)},
             {},
             {}},
            {}};
  is_waiting_ = true;
  answer_.reset();
  if (joined_.hub.is_open()) {
    Message message{
        MessageKind::kArrival, encode({kWireVersion, num_ranks(), memory_->kind(), std::move(arrival)}), {}};
    if (descriptor != nullptr) message.descriptors.push_back(std::move(descriptor));
    joined_.hub.queue(std::move(message));
  }
  wake();
  const bool ended =
      changed_.wait_until(lock, time_point_of(limit_ns), [this] { return answer_.has_value() || !broken_.ok(); });
  is_waiting_ = false;
  if (answer_ && answer_->outcome.status.code() == Code::kPeerFailed) {
    // The lifelines say more than the coordinator can: who died first, and dead_ranks() is to agree with the message.
    changed_.wait_for(lock, kLifelineLag, [this] { return !dead_.empty() || !left_.empty(); });
    if (!dead_.empty()) answer_.reset();
  }
  if (answer_) return *std::exchange(answer_, std::nullopt);
  if (!ended)
    break_locked(Code::kTimeout, fmt::format("rank 0 did not answer to '{}' within {} ms and a second more; look for "
                                             "that rank's own error, then create a new group",
                                             what, timeout_ns / kNsPerMs));
  return {{{broken_.code(), fmt::format("{}: {}", where(collective), broken_.message())}, {}, {}}, {}};
}

Status ProcessMember::allocate(uint64_t bytes, uint64_t timeout_ns) {
  if (base() != nullptr)
    return {Code::kInvalidArgument, fmt::format("symmetric_memory.allocate: rank {} must have no memory yet, has {} "
                                                "bytes; release() them first",
                                                joined_.rank, stride_bytes())};
  const uint64_t start_ns = now_ns();
  Met met =
      meet({joined_.rank, Collective::kAllocate, "allocation of memory", fmt::format("{}", bytes), 0, timeout_ns, 0});
  MEGAMOE_RETURN_IF_ERROR(met.outcome.status);
  Allocating call{joined_.rank, joined_.descriptions, bytes, std::move(met.descriptors), {}, {}, {}};
  call.meet = [&](Step step) {
    return meet({joined_.rank, step.collective, std::move(step.what), std::move(step.contribution), 0, timeout_ns,
                 now_ns() - start_ns},
                std::move(step.descriptor));
  };
  call.left_ns = [&] { return timeout_ns - std::min(timeout_ns, now_ns() - start_ns); };
  call.is_broken = [&] {
    const std::lock_guard lock(mutex_);
    return !broken_.ok();
  };
  const Status status = memory_->map(call);
  if (!status.ok()) memory_->release();
  return status;
}

Status ProcessMember::release(uint64_t timeout_ns) {
  const Met met = meet({joined_.rank, Collective::kRelease, "release of memory", {}, 0, timeout_ns, 0});
  memory_->release();  // This process's view only, so it goes even where others failed to come.
  return met.outcome.status;
}

Result<std::vector<std::string>> ProcessMember::all_gather(std::string_view mine, std::string_view what,
                                                           uint64_t timeout_ns) {
  const bool fits = mine.size() <= kMaxContributionBytes;
  Met met = meet({joined_.rank, Collective::kAllGather, std::string(what), std::string(fits ? mine : ""), mine.size(),
                  timeout_ns, 0});
  if (!met.outcome.status.ok()) return met.outcome.status;
  return std::move(met.outcome.contributions);
}

std::vector<uint32_t> ProcessMember::dead_ranks() const {
  const std::lock_guard lock(mutex_);
  return dead_;
}

void ProcessMember::set_death_callback(std::function<void(uint32_t rank)> on_death) {
  const std::lock_guard lock(callback_mutex_);
  on_death_ = std::move(on_death);
  if (!on_death_) return;
  for (const uint32_t rank : deaths_told_) on_death_(rank);
}

bool ProcessMember::is_watching(uint32_t rank) const {
  return rank != joined_.rank && !contains(dead_, rank) && !contains(left_, rank);
}

void ProcessMember::watch() {
  uint64_t goodbye_until_ns = 0;
  for (;;) {
    std::vector<pollfd> polled{{joined_.wake.get(), POLLIN, 0}};
    std::vector<uint32_t> watched;
    int timeout_ms = -1;
    {
      const std::lock_guard lock(mutex_);
      if (is_leaving_) {
        if (goodbye_until_ns == 0) goodbye_until_ns = now_ns() + kGoodbyeNs;
        if (!joined_.hub.is_open() || !joined_.hub.has_queued() || now_ns() >= goodbye_until_ns) return;
        timeout_ms = 20;
      } else if (hub_lost_ns_ != 0 && broken_.ok()) {
        timeout_ms = 50;
      }
      const short events = static_cast<short>(POLLIN | (joined_.hub.has_queued() ? POLLOUT : 0));
      polled.push_back({joined_.hub.descriptor(), events, 0});  // Negative once lost: ignored.
      for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
        if (!is_watching(rank)) continue;
        watched.push_back(rank);
        polled.push_back({joined_.lifelines[rank]->get(), 0, 0});
      }
    }
    ::poll(polled.data(), polled.size(), timeout_ms);
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      static_cast<void>(!::read(joined_.wake.get(), &count, sizeof(count)));
    }
    take_answers();  // Before the lifelines: an answer that was sent counts, even if its sender is gone by now.
    std::vector<uint32_t> hung_up;
    for (size_t i = 0; i < watched.size(); ++i)
      if (polled[2 + i].revents != 0) hung_up.push_back(watched[i]);
    look_at_lifelines(hung_up);
  }
}

void ProcessMember::take_answers() {
  const std::lock_guard lock(mutex_);
  if (!joined_.hub.is_open()) return;
  std::vector<Message> messages;
  const bool can_send = joined_.hub.send_queued();
  const bool is_open = joined_.hub.receive(messages) && can_send;  // What has arrived counts in any case.
  for (Message& message : messages) {
    Met met;
    if (message.kind != MessageKind::kOutcome || !decode(message.body, num_ranks(), met.outcome)) {
      break_locked(Code::kInternal, "rank 0 sent a malformed message; run the same megamoe on all ranks");
      continue;
    }
    met.descriptors = std::move(message.descriptors);
    if (!is_waiting_ || answer_) continue;
    answer_ = std::move(met);
    changed_.notify_all();
  }
  if (is_open) return;
  joined_.hub.close();
  hub_lost_ns_ = now_ns();
}

void ProcessMember::look_at_lifelines(const std::vector<uint32_t>& hung_up) {
  std::vector<uint32_t> died;
  {
    const std::lock_guard lock(mutex_);
    for (const uint32_t rank : hung_up) {
      int unread_bytes = 0;
      ::ioctl(joined_.lifelines[rank]->get(), FIONREAD, &unread_bytes);
      if (unread_bytes > 0) {
        left_.push_back(rank);  // What that means for a call under way, the coordinator decides.
        changed_.notify_all();
      } else {
        dead_.push_back(rank);
        died.push_back(rank);
        break_locked(Code::kPeerFailed, fmt::format("{} died; create a new group", describe(rank)));
      }
    }
    if (hub_lost_ns_ != 0 && broken_.ok()) {
      if (contains(left_, 0))
        break_locked(Code::kPeerFailed, fmt::format("{} left the group; create a new group", describe(0)));
      else if (now_ns() - hub_lost_ns_ > kHubVerdictNs)
        break_locked(Code::kPeerFailed, fmt::format("{} closed the connection; create a new group", describe(0)));
    }
  }
  for (const uint32_t rank : died) report_death(rank);
}

void ProcessMember::report_death(uint32_t rank) {
  const std::lock_guard lock(callback_mutex_);
  deaths_told_.push_back(rank);
  if (on_death_) on_death_(rank);
}

}  // namespace megamoe::comm
