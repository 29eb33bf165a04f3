// Whole messages with descriptors over a connected AF_UNIX stream socket, without ever blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/descriptor.h"

namespace megamoe::comm {

enum class MessageKind : uint32_t {
  kArrival = 1,  ///< A rank comes to a collective call. Descriptors: with kJoin, the read end of its lifeline;
                 ///< with kShare, its memory, or none where it has failed.
  kOutcome = 2,  ///< The coordinator's answer. Descriptors: with kJoin, all lifelines; with kAllocate, the memory
                 ///< file of a group in host memory; with kShare, every rank's memory.
  kWaiting = 3,  ///< The coordinator counts the rank in; an answer follows, unless rank 0 dies.
  kGoodbye = 4,  ///< A rank leaves the group.
};

struct Message {
  MessageKind kind = MessageKind::kGoodbye;
  std::string body;
  std::vector<std::shared_ptr<const Descriptor>> descriptors;
};

inline constexpr size_t kMaxDescriptors = 128;  // Above kMaxRanks, below the kernel's 253.

class Channel {
 public:
  /// @param max_body_bytes  a peer that announces more is cut off
  Channel(Descriptor socket, uint64_t max_body_bytes) : socket_(std::move(socket)), max_body_bytes_(max_body_bytes) {}

  int descriptor() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  void close() { socket_.reset(); }

  void queue(Message message);
  bool has_queued() const { return !outgoing_.empty(); }

  /// Both move what can be moved now and answer false when the connection has ended (messages that had arrived whole
  /// are still delivered) or the peer broke the rules.
  bool send_queued();
  bool receive(std::vector<Message>& messages);

 private:
  struct Header {
    uint32_t magic = 0;
    MessageKind kind = MessageKind::kGoodbye;
    uint64_t body_bytes = 0;
    uint64_t num_descriptors = 0;
  };
  struct Outgoing {
    std::string bytes;
    size_t sent_bytes = 0;
    std::vector<std::shared_ptr<const Descriptor>> descriptors;
  };
  enum class Read { kSome, kNothing, kEnd };

  static constexpr uint32_t kMagic = 0x314d4d4du;

  Read read_into(char* target, size_t target_bytes, size_t& read_bytes);
  bool header_is_valid() const;

  Descriptor socket_;
  uint64_t max_body_bytes_;
  std::deque<Outgoing> outgoing_;
  Header header_;
  size_t header_filled_bytes_ = 0;
  Message incoming_;
};

}  // namespace megamoe::comm
