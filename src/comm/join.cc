// How a process becomes a member: rank 0 opens the rendezvous, the others find it, all say who they are.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "comm/clock.h"
#include "comm/process_group.h"
#include "comm/rendezvous.h"
#include "comm/system_error.h"
#include "comm/wire.h"
#include "megamoe/process_group.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kGraceNs = 1'000 * kNsPerMs;
constexpr char kForming[] = "forming of the group";

Status no_descriptors(std::string_view step, int error_number) {
  return {Code::kNotSupported,
          fmt::format("join_process_group: {} must succeed, got: {}; raise the limit of open files "
                      "(ulimit -n)",
                      step, error_text(error_number))};
}

Result<Lifeline> make_lifeline() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return no_descriptors("pipe", errno);
  return Lifeline{Descriptor(ends[0]), Descriptor(ends[1])};
}

/// A lifeline from another process is the read end of a pipe, and nothing else.
bool is_lifeline(int descriptor) {
  struct stat info {};
  const int flags = ::fcntl(descriptor, F_GETFL);
  return ::fstat(descriptor, &info) == 0 && S_ISFIFO(info.st_mode) && flags >= 0 && (flags & O_ACCMODE) == O_RDONLY;
}

/// Rank 0: the rendezvous and a coordinator behind it. Nothing where another process holds the rendezvous.
Result<std::optional<Descriptor>> become_coordinator(const ProcessGroupOptions& options, MemoryKind memory,
                                                     const RendezvousPlace& place,
                                                     std::unique_ptr<Coordinator>& coordinator) {
  Result<std::optional<Listener>> listener = Listener::open(place);
  if (!listener.ok()) return listener.status();
  if (!listener.value()) return std::optional<Descriptor>();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return no_descriptors("socketpair", errno);
  Descriptor mine(ends[0]), theirs(ends[1]);
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) return no_descriptors("eventfd", errno);
  coordinator = std::make_unique<Coordinator>(options.num_ranks, memory, *std::move(listener.value()),
                                              std::move(theirs), std::move(wake));
  return std::optional<Descriptor>(std::move(mine));
}

Status rank0_did_not_come(const ProcessGroupOptions& options) {
  return {Code::kTimeout,
          fmt::format("join_process_group: rank 0 did not come to '{}' within {} ms; look for that rank's own error, "
                      "and check that all ranks have the same group name and rendezvous folder",
                      kForming, options.timeout_ns / kNsPerMs)};
}

/// A connection to the coordinator, by the deadline.
Result<Descriptor> find_hub(const ProcessGroupOptions& options, MemoryKind memory, const RendezvousPlace& place,
                            uint64_t deadline_ns, std::unique_ptr<Coordinator>& coordinator) {
  for (uint64_t pause_ms = 1;; pause_ms = std::min<uint64_t>(pause_ms * 2, 20)) {
    if (options.rank == 0) {
      Result<std::optional<Descriptor>> hub = become_coordinator(options, memory, place, coordinator);
      if (!hub.ok()) return hub.status();
      if (hub.value()) return *std::move(hub.value());
    }
    Result<std::optional<Descriptor>> hub = connect_to_rank0(place);
    if (!hub.ok()) return hub.status();
    if (hub.value()) return *std::move(hub.value());
    if (now_ns() >= deadline_ns) return rank0_did_not_come(options);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
}

/// Says who this is, waits for the answer, checks it. False where the coordinator went away before it counted this rank
/// in: it then was busy ending another group.
Result<bool> introduce(const ProcessGroupOptions& options, MemoryKind memory, uint64_t deadline_ns, Joined& joined) {
  const uint64_t left_ns = deadline_ns - std::min(deadline_ns, now_ns());
  const uint64_t spent_ns = options.timeout_ns - std::min(options.timeout_ns, left_ns);
  Arrival arrival{options.rank,       Collective::kJoin, kForming, fmt::format("{}", ::getpid()), 0,
                  options.timeout_ns, spent_ns};
  Message hello{MessageKind::kArrival, encode({kWireVersion, options.num_ranks, memory, std::move(arrival)}), {}};
  const int read_end = ::fcntl(joined.own.read_end.get(), F_DUPFD_CLOEXEC, 0);
  if (read_end < 0) return no_descriptors("dup", errno);
  hello.descriptors.push_back(std::make_shared<const Descriptor>(read_end));
  joined.hub.queue(std::move(hello));

  std::vector<Message> messages;
  for (bool is_counted_in = false;;) {
    const bool can_send = joined.hub.send_queued();
    const bool is_open = joined.hub.receive(messages) && can_send;
    if (!messages.empty() && messages.front().kind == MessageKind::kWaiting) {
      is_counted_in = true;
      messages.erase(messages.begin());
    }
    if (!messages.empty()) break;
    if (!is_open && is_counted_in)
      return Status{Code::kPeerFailed, "join_process_group: rank 0 died while the group formed; create a new group"};
    if (!is_open) return false;
    const uint64_t now = now_ns();
    if (now >= deadline_ns + kGraceNs)
      return Status{Code::kTimeout, fmt::format("join_process_group: rank 0 did not answer to '{}' within {} ms and a "
                                                "second more; look for that rank's own error",
                                                kForming, options.timeout_ns / kNsPerMs)};
    const short events = static_cast<short>(POLLIN | (joined.hub.has_queued() ? POLLOUT : 0));
    pollfd polled{joined.hub.descriptor(), events, 0};
    ::poll(&polled, 1, static_cast<int>(std::min<uint64_t>((deadline_ns + kGraceNs - now) / kNsPerMs + 1, 1000)));
  }
  Message& message = messages.front();
  Outcome outcome;
  const bool is_sane = message.kind == MessageKind::kOutcome && decode(message.body, options.num_ranks, outcome);
  if (is_sane && !outcome.status.ok()) return outcome.status;
  const auto& lifelines = message.descriptors;
  if (!is_sane || messages.size() != 1 || lifelines.size() != options.num_ranks ||
      !std::all_of(lifelines.begin(), lifelines.end(), [](const auto& item) { return is_lifeline(item->get()); }))
    return Status{Code::kPeerFailed,
                  "join_process_group: rank 0's answer must name every rank and hold one pipe for "
                  "each, got something else; run the same megamoe on all ranks"};
  joined.descriptions = std::move(outcome.contributions);
  joined.lifelines = std::move(message.descriptors);
  return true;
}

}  // namespace

Result<std::shared_ptr<ProcessMember>> join(const ProcessGroupOptions& options, std::unique_ptr<ProcessMemory> memory) {
  if (options.num_ranks < 1 || options.num_ranks > kMaxRanks)
    return Status{Code::kInvalidArgument,
                  fmt::format("join_process_group: num_ranks must be 1 to {}, got {}", kMaxRanks, options.num_ranks)};
  if (options.rank >= options.num_ranks)
    return Status{Code::kInvalidArgument, fmt::format("join_process_group: rank must be below num_ranks {}, got {}",
                                                      options.num_ranks, options.rank)};
  const Result<RendezvousPlace> place = rendezvous_place(options);
  if (!place.ok()) return place.status();
  const uint64_t deadline_ns = deadline_after(now_ns(), options.timeout_ns);
  const uint64_t max_body_bytes = kMaxContributionBytes * options.num_ranks + kMessageSlackBytes;

  for (;;) {
    Joined joined{options.rank, Channel(Descriptor(), max_body_bytes), {}, {}, {}, nullptr, {}};
    Result<Lifeline> lifeline = make_lifeline();
    if (!lifeline.ok()) return lifeline.status();
    joined.own = std::move(lifeline).value();
    joined.wake = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!joined.wake.is_open()) return no_descriptors("eventfd", errno);
    Result<Descriptor> hub = find_hub(options, memory->kind(), place.value(), deadline_ns, joined.coordinator);
    if (!hub.ok()) {
      remove_abandoned(place.value());
      return hub.status();
    }
    joined.hub = Channel(std::move(hub).value(), max_body_bytes);
    const Result<bool> introduced = introduce(options, memory->kind(), deadline_ns, joined);
    if (introduced.ok() && introduced.value())
      return std::make_shared<ProcessMember>(std::move(joined), std::move(memory));
    joined.own.say_goodbye();  // To ranks that may have been let in before the forming failed.
    remove_abandoned(place.value());
    if (!introduced.ok()) return introduced.status();
    if (now_ns() >= deadline_ns) return rank0_did_not_come(options);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace megamoe::comm

namespace megamoe {

Result<std::shared_ptr<SymmetricMemory>> join_process_group(const ProcessGroupOptions& options) {
  auto member = comm::join(options, std::make_unique<comm::HostProcessMemory>());
  if (!member.ok()) return member.status();
  return std::shared_ptr<SymmetricMemory>(std::move(member).value());
}

}  // namespace megamoe
