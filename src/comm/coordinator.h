// Rank 0's side of a process group: a thread that gathers the ranks' arrivals and tells each outcome to all.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "comm/channel.h"
#include "comm/meeting.h"
#include "comm/rendezvous.h"
#include "comm/wire.h"

namespace megamoe::comm {

/// Serves until stop(). Rank 0 itself is a client like the others, over a socket pair.
class Coordinator {
 public:
  Coordinator(uint32_t num_ranks, MemoryKind memory, Listener listener, Descriptor rank0, Descriptor wake);
  ~Coordinator() { stop(); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Sends what is still queued, for at most a second, and ends the thread.
  void stop();

 private:
  struct Client {
    Channel channel;
    std::optional<uint32_t> rank;
    std::shared_ptr<const Descriptor> lifeline;  // Until it is handed on.
    std::shared_ptr<const Descriptor> shared;    // With kShare, until the call ends.
    bool left = false;
  };

  void serve();
  int poll_timeout_ms(uint64_t now) const;
  void accept_clients();
  void read_from(Client& client);
  void handle(Client& client, Message message);
  void handle_join(Client& client, WireArrival wire, Message message);
  void refuse_client(Client& client, const Status& status);
  void tell(Outcome outcome, Collective collective);
  Status attach_memory(const Outcome& outcome, std::vector<std::shared_ptr<const Descriptor>>& attached) const;
  std::vector<std::shared_ptr<const Descriptor>> take_shared();
  void complete_join(const Outcome& outcome);
  void forget_lost_clients();
  bool has_queued() const;
  void flush();
  bool is_forming() const { return listener_.is_open(); }
  void end_forming();

  const uint32_t num_ranks_;
  const MemoryKind memory_;
  Listener listener_;
  Descriptor wake_;
  std::list<Client> clients_;
  Meeting meeting_;
  Collective collective_ = Collective::kJoin;  // Of the call that is under way.
  std::vector<bool> told_;                     // Ranks that know why the group did not form.
  std::optional<uint64_t> linger_until_ns_;    // After a refusal: for ranks that are still on their way.
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace megamoe::comm
