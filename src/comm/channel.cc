// Framing, and SCM_RIGHTS: a frame's descriptors travel with its first byte, and no read crosses a frame's end, so that
// descriptors are never credited to another frame.
#include "comm/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace megamoe::comm {
namespace {

constexpr size_t kChunkBytes = size_t{256} << 10;

}  // namespace

void Channel::queue(Message message) {
  Header header{kMagic, message.kind, message.body.size(), message.descriptors.size()};
  Outgoing outgoing;
  outgoing.bytes.resize(sizeof(header));
  std::memcpy(outgoing.bytes.data(), &header, sizeof(header));
  outgoing.bytes += message.body;
  outgoing.descriptors = std::move(message.descriptors);
  outgoing_.push_back(std::move(outgoing));
}

bool Channel::send_queued() {
  while (!outgoing_.empty()) {
    Outgoing& first = outgoing_.front();
    iovec part{first.bytes.data() + first.sent_bytes, first.bytes.size() - first.sent_bytes};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
    if (!first.descriptors.empty()) {
      const size_t payload_bytes = sizeof(int) * first.descriptors.size();
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(payload_bytes);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(payload_bytes);
      for (size_t i = 0; i < first.descriptors.size(); ++i) {
        const int number = first.descriptors[i]->get();
        std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &number, sizeof(int));
      }
    }
    const ssize_t sent = ::sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != ETOOMANYREFS) return errno == EAGAIN || errno == EWOULDBLOCK;
      // The user's limit of descriptors under way: wait for receivers to take theirs.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return true;
    }
    first.descriptors.clear();
    first.sent_bytes += static_cast<size_t>(sent);
    if (first.sent_bytes == first.bytes.size()) outgoing_.pop_front();
  }
  return true;
}

Channel::Read Channel::read_into(char* target, size_t target_bytes, size_t& read_bytes) {
  iovec part{target, target_bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Read::kNothing : Read::kEnd;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t num_descriptors = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < num_descriptors; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      incoming_.descriptors.push_back(std::make_shared<const Descriptor>(number));
    }
  }
  if (got == 0 || (header.msg_flags & MSG_CTRUNC) != 0) return Read::kEnd;
  read_bytes = static_cast<size_t>(got);
  return Read::kSome;
}

bool Channel::header_is_valid() const {
  return header_.magic == kMagic && header_.kind >= MessageKind::kArrival && header_.kind <= MessageKind::kGoodbye &&
         header_.body_bytes <= max_body_bytes_ && header_.num_descriptors <= kMaxDescriptors;
}

bool Channel::receive(std::vector<Message>& messages) {
  for (;;) {
    size_t read_bytes = 0;
    if (header_filled_bytes_ < sizeof(Header)) {
      char* const target = reinterpret_cast<char*>(&header_) + header_filled_bytes_;
      const Read read = read_into(target, sizeof(Header) - header_filled_bytes_, read_bytes);
      if (read != Read::kSome) return read == Read::kNothing;
      header_filled_bytes_ += read_bytes;
      if (header_filled_bytes_ < sizeof(Header)) continue;
      if (!header_is_valid()) return false;
      incoming_.kind = header_.kind;
    } else {
      const size_t filled_bytes = incoming_.body.size();
      incoming_.body.resize(std::min<uint64_t>(header_.body_bytes, filled_bytes + kChunkBytes));
      const Read read =
          read_into(incoming_.body.data() + filled_bytes, incoming_.body.size() - filled_bytes, read_bytes);
      incoming_.body.resize(filled_bytes + read_bytes);
      if (read != Read::kSome) return read == Read::kNothing;
    }
    if (incoming_.body.size() < header_.body_bytes) continue;
    if (incoming_.descriptors.size() != header_.num_descriptors) return false;
    messages.push_back(std::exchange(incoming_, {}));
    header_filled_bytes_ = 0;
  }
}

}  // namespace megamoe::comm
