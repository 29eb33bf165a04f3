// Messages over a socket pair: whole, in order, with exactly the descriptors that were announced.
#include "comm/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>

#include "comm/wire.h"

namespace megamoe::comm {
namespace {

std::pair<Descriptor, Descriptor> socket_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<std::shared_ptr<const Descriptor>> null_devices(size_t count) {
  std::vector<std::shared_ptr<const Descriptor>> devices;
  for (size_t i = 0; i < count; ++i)
    devices.push_back(std::make_shared<const Descriptor>(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  return devices;
}

size_t num_open() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(Channel, CarriesMessagesLargerThanTheSocketBufferWithTheirDescriptors) {
  auto [left, right] = socket_pair();
  Channel sender(std::move(left), 100), receiver(std::move(right), 8 << 20);
  std::string large(5 << 20, 'x');
  for (size_t i = 0; i < large.size(); i += 999) large[i] = static_cast<char>(i);
  sender.queue({MessageKind::kArrival, "small", null_devices(1)});
  sender.queue({MessageKind::kOutcome, large, null_devices(72)});
  sender.queue({MessageKind::kGoodbye, "", {}});
  std::vector<Message> messages;
  for (int i = 0; i < 10'000 && messages.size() < 3; ++i) {
    ASSERT_TRUE(sender.send_queued());
    ASSERT_TRUE(receiver.receive(messages));
  }
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].body, "small");
  EXPECT_EQ(messages[0].descriptors.size(), 1u);
  EXPECT_TRUE(messages[1].body == large);
  EXPECT_EQ(messages[1].descriptors.size(), 72u);
  EXPECT_EQ(messages[2].kind, MessageKind::kGoodbye);
  EXPECT_TRUE(messages[2].descriptors.empty());
  for (const auto& descriptor : messages[1].descriptors) EXPECT_EQ(::fcntl(descriptor->get(), F_GETFD), FD_CLOEXEC);
}

TEST(Channel, DeliversWhatWasSentBeforeTheEnd) {
  auto [left, right] = socket_pair();
  Channel receiver(std::move(right), 100);
  {
    Channel sender(std::move(left), 100);
    sender.queue({MessageKind::kOutcome, "last words", {}});
    ASSERT_TRUE(sender.send_queued());
  }
  std::vector<Message> messages;
  EXPECT_FALSE(receiver.receive(messages));
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].body, "last words");
}

struct RawHeader {
  uint32_t magic = 0x314d4d4d;
  uint32_t kind = 2;
  uint64_t body_bytes = 0;
  uint64_t num_descriptors = 0;
};

/// What the receiver makes of a header as these bytes, sent with `num_sent` descriptors: {still open, messages}.
std::pair<bool, size_t> receive_raw(const RawHeader& header, size_t num_sent) {
  auto [left, right] = socket_pair();
  Channel receiver(std::move(right), 100);
  iovec part{const_cast<RawHeader*>(&header), sizeof(header)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)] = {};
  const auto devices = null_devices(num_sent);
  if (num_sent > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * num_sent);
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * num_sent);
    for (size_t i = 0; i < num_sent; ++i) {
      const int number = devices[i]->get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &number, sizeof(int));
    }
  }
  EXPECT_EQ(::sendmsg(left.get(), &message, 0), static_cast<ssize_t>(sizeof(header)));
  std::vector<Message> messages;
  const bool is_open = receiver.receive(messages);
  return {is_open, messages.size()};
}

TEST(Channel, RefusesFramesThatBreakTheRulesAndClosesTheirDescriptors) {
  using Answer = std::pair<bool, size_t>;
  const size_t before = num_open();
  EXPECT_EQ(receive_raw({}, 0), Answer(true, 1));
  EXPECT_EQ(receive_raw({.num_descriptors = 2}, 2), Answer(true, 1));
  EXPECT_EQ(receive_raw({.num_descriptors = 1}, 0), Answer(false, 0));
  EXPECT_EQ(receive_raw({.num_descriptors = 0}, 1), Answer(false, 0));
  EXPECT_EQ(receive_raw({.num_descriptors = 1}, 2), Answer(false, 0));
  EXPECT_EQ(receive_raw({.num_descriptors = 200}, 200), Answer(false, 0));
  EXPECT_EQ(receive_raw({.magic = 1}, 0), Answer(false, 0));
  EXPECT_EQ(receive_raw({.kind = 0}, 0), Answer(false, 0));
  EXPECT_EQ(receive_raw({.kind = 99}, 0), Answer(false, 0));
  EXPECT_EQ(receive_raw({.body_bytes = 101}, 0), Answer(false, 0));
  EXPECT_EQ(receive_raw({.body_bytes = UINT64_MAX}, 0), Answer(false, 0));
  EXPECT_EQ(receive_raw({.body_bytes = 100}, 0), Answer(true, 0));
  EXPECT_EQ(num_open(), before);
}

TEST(Wire, ReadsWhatWasWritten) {
  const WireArrival arrival{
      kWireVersion, 4, MemoryKind::kGpu, {3, Collective::kRelease, "what", std::string("a\0b", 3), 3, 77, 5}};
  WireArrival read;
  ASSERT_TRUE(decode(encode(arrival), read));
  EXPECT_EQ(encode(read), encode(arrival));
  EXPECT_EQ(read.arrival.contribution.size(), 3u);
  const Outcome outcome{{}, {"x", "", "zz"}, {}};
  Outcome read_outcome;
  ASSERT_TRUE(decode(encode(outcome), 3, read_outcome));
  EXPECT_EQ(read_outcome.contributions, outcome.contributions);
}

TEST(Wire, RefusesEveryTruncationAndAnyExcess) {
  const std::string arrival =
      encode(WireArrival{kWireVersion, 4, MemoryKind::kHost, {3, Collective::kJoin, "what", "x", 1, 7, 0}});
  const std::string outcome = encode(Outcome{{}, {"x", "y"}, {}});
  for (size_t length = 0; length < arrival.size(); ++length) {
    WireArrival read;
    EXPECT_FALSE(decode(std::string_view(arrival).substr(0, length), read)) << length;
  }
  for (size_t length = 0; length < outcome.size(); ++length) {
    Outcome read;
    EXPECT_FALSE(decode(std::string_view(outcome).substr(0, length), 2, read)) << length;
  }
  WireArrival read;
  Outcome read_outcome, other_outcome;
  EXPECT_FALSE(decode(arrival + "x", read));
  EXPECT_FALSE(decode(outcome + "x", 2, read_outcome));
  EXPECT_FALSE(decode(outcome, 3, other_outcome));
}

}  // namespace
}  // namespace megamoe::comm
