// One poll loop; no call in it blocks, so no rank can hold up another.
#include "comm/coordinator.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "comm/clock.h"
#include "comm/memfd.h"
#include "comm/region.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kLingerNs = 1'500 * kNsPerMs;
constexpr uint64_t kFlushNs = 1'000 * kNsPerMs;

std::string_view memory_text(MemoryKind kind) { return kind == MemoryKind::kHost ? "host memory" : "GPU memory"; }

}  // namespace

Coordinator::Coordinator(uint32_t num_ranks, MemoryKind memory, Listener listener, Descriptor rank0, Descriptor wake)
    : num_ranks_(num_ranks),
      memory_(memory),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      meeting_(num_ranks),
      told_(num_ranks, false) {
  clients_.push_back({Channel(std::move(rank0), kMaxContributionBytes + kMessageSlackBytes), {}, {}, {}, false});
  thread_ = std::thread([this] { serve(); });
}

void Coordinator::stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof(one)));
  thread_.join();
}

int Coordinator::poll_timeout_ms(uint64_t now) const {
  uint64_t until = UINT64_MAX;
  if (const auto deadline = meeting_.deadline_ns()) until = *deadline;
  if (linger_until_ns_) until = std::min(until, *linger_until_ns_);
  if (until == UINT64_MAX) return -1;
  if (until <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((until - now) / kNsPerMs + 1, 60'000));
}

void Coordinator::serve() {
  while (!stopping_ || linger_until_ns_) {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    if (is_forming()) polled.push_back({listener_.descriptor(), POLLIN, 0});
    for (const Client& client : clients_) {
      const short events = static_cast<short>(POLLIN | (client.channel.has_queued() ? POLLOUT : 0));
      polled.push_back({client.channel.descriptor(), events, 0});
    }
    ::poll(polled.data(), polled.size(), poll_timeout_ms(now_ns()));
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      static_cast<void>(!::read(wake_.get(), &count, sizeof(count)));
    }
    if (is_forming()) accept_clients();
    for (Client& client : clients_) read_from(client);
    if (auto outcome = meeting_.expire(now_ns())) tell(*std::move(outcome), collective_);
    forget_lost_clients();
    if (linger_until_ns_ &&
        (now_ns() >= *linger_until_ns_ || std::find(told_.begin(), told_.end(), false) == told_.end())) {
      linger_until_ns_.reset();
      end_forming();
    }
  }
  end_forming();
  flush();
}

void Coordinator::accept_clients() {
  while (auto socket = accept_peer(listener_.descriptor()))
    clients_.push_back({Channel(*std::move(socket), kMaxContributionBytes + kMessageSlackBytes), {}, {}, {}, false});
}

void Coordinator::read_from(Client& client) {
  if (!client.channel.is_open()) return;
  std::vector<Message> messages;
  const bool is_open = client.channel.receive(messages);
  for (Message& message : messages) handle(client, std::move(message));
  if (!is_open || !client.channel.send_queued()) client.channel.close();
}

void Coordinator::forget_lost_clients() {
  std::vector<uint32_t> died, left;
  for (const Client& client : clients_)
    if (!client.channel.is_open() && client.rank) (client.left ? left : died).push_back(*client.rank);
  clients_.remove_if([](const Client& client) { return !client.channel.is_open(); });
  if (is_forming() && !(died.empty() && left.empty())) {
    for (const uint32_t rank : died) told_[rank] = true;
    for (const uint32_t rank : left) told_[rank] = true;
    if (!linger_until_ns_) linger_until_ns_ = now_ns() + kLingerNs;
  }
  // Deaths first: they are why others leave.
  for (const uint32_t rank : died)
    if (auto outcome = meeting_.die(rank)) tell(*std::move(outcome), collective_);
  for (const uint32_t rank : left)
    if (auto outcome = meeting_.leave(rank)) tell(*std::move(outcome), collective_);
}

void Coordinator::handle(Client& client, Message message) {
  if (message.kind == MessageKind::kGoodbye) {
    client.left = true;
    client.channel.close();
    return;
  }
  WireArrival wire;
  if (message.kind != MessageKind::kArrival || !decode(message.body, wire)) return client.channel.close();
  if (wire.arrival.collective == Collective::kJoin) return handle_join(client, std::move(wire), std::move(message));
  const size_t most_descriptors = wire.arrival.collective == Collective::kShare ? 1 : 0;
  if (client.rank != wire.arrival.rank || message.descriptors.size() > most_descriptors) return client.channel.close();
  if (!meeting_.broken().ok()) return refuse_client(client, meeting_.broken_status(wire.arrival.collective));
  if (meeting_.has_come(*client.rank)) return client.channel.close();
  collective_ = wire.arrival.collective;
  if (!message.descriptors.empty()) client.shared = std::move(message.descriptors.front());
  if (auto outcome = meeting_.arrive(std::move(wire.arrival), now_ns())) tell(*std::move(outcome), collective_);
}

void Coordinator::handle_join(Client& client, WireArrival wire, Message message) {
  if (client.rank || !is_forming() || message.descriptors.size() != 1) return client.channel.close();
  Arrival& arrival = wire.arrival;
  const std::string who = fmt::format("rank {} (pid {})", arrival.rank, arrival.contribution);
  std::string reason;
  if (wire.version != kWireVersion)
    reason = fmt::format("all ranks must run the same megamoe, got protocol {} on rank 0 and {} on {}", kWireVersion,
                         wire.version, who);
  else if (wire.num_ranks != num_ranks_)
    reason = fmt::format("all ranks must agree on the number of ranks, got {} on rank 0 and {} on {}; check WORLD_SIZE",
                         num_ranks_, wire.num_ranks, who);
  else if (wire.memory != memory_)
    reason = fmt::format(
        "all ranks must join with memory of one kind, got {} on rank 0 and {} on {}; start all ranks "
        "with one command line",
        memory_text(memory_), memory_text(wire.memory), who);
  else if (arrival.rank >= num_ranks_)
    reason = fmt::format("ranks must be below the number of ranks, {}, got {}", num_ranks_, who);
  else if (meeting_.has_come(arrival.rank))
    reason = fmt::format("each rank must be one process, got {} and {}; check RANK, or name the groups differently",
                         meeting_.describe(arrival.rank), who);
  if (meeting_.broken().ok() && reason.empty()) {
    client.rank = arrival.rank;
    client.lifeline = message.descriptors.front();
    meeting_.set_description(arrival.rank, who);
    client.channel.queue({MessageKind::kWaiting, {}, {}});
    static_cast<void>(client.channel.send_queued());
    if (auto outcome = meeting_.arrive(std::move(arrival), now_ns())) tell(*std::move(outcome), Collective::kJoin);
    return;
  }
  if (meeting_.broken().ok()) {
    linger_until_ns_ = now_ns() + kLingerNs;
    if (auto outcome = meeting_.refuse(Code::kInvalidArgument, std::move(reason)))
      tell(*std::move(outcome), Collective::kJoin);
  }
  if (arrival.rank < num_ranks_) told_[arrival.rank] = true;
  refuse_client(client, {meeting_.broken().code(), fmt::format("join_process_group: {}", meeting_.broken().message())});
}

void Coordinator::refuse_client(Client& client, const Status& status) {
  client.channel.queue({MessageKind::kOutcome, encode(Outcome{status, {}, {}}), {}});
}

Status Coordinator::attach_memory(const Outcome& outcome,
                                  std::vector<std::shared_ptr<const Descriptor>>& attached) const {
  const Result<uint64_t> bytes = agree_on_bytes(outcome.contributions);
  if (!bytes.ok()) return bytes.status();
  const Result<RegionSizes> sizes = region_sizes(bytes.value(), num_ranks_);
  if (!sizes.ok()) return sizes.status();
  if (memory_ != MemoryKind::kHost) return {};
  Result<Descriptor> file = create_memory_file(sizes.value().total_bytes);
  if (!file.ok()) return file.status();
  attached.push_back(std::make_shared<const Descriptor>(std::move(file).value()));
  return {};
}

std::vector<std::shared_ptr<const Descriptor>> Coordinator::take_shared() {
  std::vector<std::shared_ptr<const Descriptor>> by_rank(num_ranks_);
  for (Client& client : clients_)
    if (client.rank) by_rank[*client.rank] = std::exchange(client.shared, nullptr);
  const bool is_complete =
      std::all_of(by_rank.begin(), by_rank.end(), [](const auto& item) { return item != nullptr; });
  if (!is_complete) by_rank.clear();  // Somebody has failed and says so in its contribution.
  return by_rank;
}

void Coordinator::complete_join(const Outcome& outcome) {
  Outcome welcome{{}, {}, {}};
  for (uint32_t rank = 0; rank < num_ranks_; ++rank) welcome.contributions.push_back(meeting_.describe(rank));
  const std::string body = encode(welcome);
  std::vector<std::shared_ptr<const Descriptor>> lifelines(num_ranks_);
  for (Client& client : clients_)
    if (client.rank) lifelines[*client.rank] = std::exchange(client.lifeline, nullptr);
  for (Client& client : clients_) {
    if (!client.rank || std::find(outcome.ranks.begin(), outcome.ranks.end(), *client.rank) == outcome.ranks.end())
      continue;
    client.channel.queue({MessageKind::kOutcome, body, lifelines});
  }
}

void Coordinator::tell(Outcome outcome, Collective collective) {
  if (collective == Collective::kJoin && outcome.status.ok()) {
    end_forming();  // Before anyone is told: whoever returns finds nothing left of the rendezvous.
    complete_join(outcome);
  } else {
    std::vector<std::shared_ptr<const Descriptor>> attached = take_shared();
    if (!outcome.status.ok()) attached.clear();
    if (collective == Collective::kAllocate && outcome.status.ok()) outcome.status = attach_memory(outcome, attached);
    const std::string body = encode(outcome);
    for (Client& client : clients_) {
      if (!client.rank || std::find(outcome.ranks.begin(), outcome.ranks.end(), *client.rank) == outcome.ranks.end())
        continue;
      client.channel.queue({MessageKind::kOutcome, body, attached});
      if (collective == Collective::kJoin) told_[*client.rank] = true;
    }
  }
  for (Client& client : clients_)
    if (client.channel.is_open()) static_cast<void>(client.channel.send_queued());
  if (collective == Collective::kJoin && !outcome.status.ok() && !linger_until_ns_) end_forming();
}

void Coordinator::end_forming() { listener_.remove(); }

bool Coordinator::has_queued() const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const Client& client) { return client.channel.is_open() && client.channel.has_queued(); });
}

void Coordinator::flush() {
  const uint64_t until = now_ns() + kFlushNs;
  while (has_queued() && now_ns() < until) {
    std::vector<pollfd> polled;
    for (Client& client : clients_)
      if (client.channel.is_open() && client.channel.has_queued())
        polled.push_back({client.channel.descriptor(), POLLOUT, 0});
    ::poll(polled.data(), polled.size(), 50);
    for (Client& client : clients_)
      if (client.channel.is_open() && !client.channel.send_queued()) client.channel.close();
  }
}

}  // namespace megamoe::comm
