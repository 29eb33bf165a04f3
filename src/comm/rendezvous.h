// Where the processes of one group find each other: a socket in a folder that only their user can enter.
#pragma once

#include <optional>
#include <string>

#include "comm/descriptor.h"
#include "megamoe/process_group.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// <base>/<group>/rank0.sock. Rank 0 creates the group's folder, holds a lock on it while the group forms (the kernel
/// drops the lock of a dead process, so leftovers never block) and removes it once all ranks have joined.
struct RendezvousPlace {
  std::string base;
  std::string group;
  bool is_default = true;  ///< Not named by the user: the base is ours to create and remove.
};

Result<RendezvousPlace> rendezvous_place(const ProcessGroupOptions& options);

/// Rank 0's listening socket.
class Listener {
 public:
  Listener() = default;
  ~Listener() { remove(); }
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) noexcept = default;

  /// Nothing where another live process is rank 0 of this group now, or where the folder vanished on the way.
  static Result<std::optional<Listener>> open(const RendezvousPlace& place);

  int descriptor() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  /// Closes the socket and removes the socket file and the folders.
  void remove();

 private:
  RendezvousPlace place_;
  Descriptor base_;
  bool removes_base_ = false;
  Descriptor folder_;  // Holds the lock.
  Descriptor socket_;
};

/// A connection to rank 0 whose process belongs to the same user; nothing where rank 0 is not there yet.
Result<std::optional<Descriptor>> connect_to_rank0(const RendezvousPlace& place);

/// A connection that waits at the listener, if its process belongs to the same user.
std::optional<Descriptor> accept_peer(int listener);

/// Removes what a dead rank 0 left; does nothing while a live one holds the folder.
void remove_abandoned(const RendezvousPlace& place);

}  // namespace megamoe::comm
