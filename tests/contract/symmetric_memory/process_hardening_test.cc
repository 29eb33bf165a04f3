// Strangers, wrong folders, wrong descriptors and hardened containers: refused with a sentence, or of no effect.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <thread>

#include "comm/channel.h"
#include "comm/rendezvous.h"
#include "comm/wire.h"
#include "rank_runner.h"

namespace megamoe::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kTimeoutNs = 20 * kSecond;

std::string use_memory(std::shared_ptr<SymmetricMemory>& memory) {
  if (const Status status = memory->allocate(8 << 20, kTimeoutNs); !status.ok()) return text_of(status);
  std::memset(memory->base() + memory->rank() * memory->stride_bytes(), 1, 8 << 20);
  if (const auto all = memory->all_gather("", "test", kTimeoutNs); !all.ok()) return text_of(all.status());
  for (uint32_t rank = 0; rank < memory->num_ranks(); ++rank)
    if (memory->base()[rank * memory->stride_bytes() + 77] != std::byte{1}) return "wrong data";
  return text_of(memory->release(kTimeoutNs));
}

/// Both ranks' answers, each after `prepare` in its own process; they must be the same.
std::string form(
    const std::string& folder, const std::function<void()>& prepare = [] {}) {
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < 2; ++rank)
    children.push_back(Child([&, rank] {
      prepare();
      return run_as_rank({rank, 2, "hardening", folder, kTimeoutNs}, use_memory);
    }));
  const std::string first = children[0].wait(), second = children[1].wait();
  return first == second ? first : first + " | " + second;
}

TEST(RendezvousFolder, IsMadeWhereMissingAndRemovedAgain) {
  const TempFolder parent;
  EXPECT_EQ(form(parent.path() + "/new"), "ok");
  EXPECT_EQ(parent.num_entries(), 0u);
}

TEST(RendezvousFolder, MayHaveAPathLongerThanASocketAddress) {
  const TempFolder parent;
  std::string path = parent.path();
  for (int depth = 0; depth < 8; ++depth) path += "/" + std::string(50, 'x');
  std::filesystem::create_directories(path);
  ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
  EXPECT_EQ(form(path + "/"), "ok");
}

TEST(RendezvousFolder, ThatOthersCanEnterIsRefused) {
  for (const mode_t mode : {0755, 0770, 0701, 0777}) {
    const TempFolder folder;
    ASSERT_EQ(::chmod(folder.path().c_str(), mode), 0);
    EXPECT_EQ(form(folder.path()),
              fmt::format("invalid_argument: join_process_group: the rendezvous folder {} must have mode 0700, so that "
                          "nobody else can enter it, got {:04o}; set MEGAMOE_RENDEZVOUS to a folder of your own with "
                          "mode 0700",
                          folder.path(), mode));
  }
}

TEST(RendezvousFolder, ThatIsALinkOrAFileIsRefused) {
  const TempFolder folder;
  const std::string target = folder.path() + "/target", link = folder.path() + "/link", file = folder.path() + "/file";
  ASSERT_EQ(::mkdir(target.c_str(), 0700), 0);
  ASSERT_EQ(::symlink(target.c_str(), link.c_str()), 0);
  ::close(::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_THAT(form(link), HasSubstr("must be a folder, got a symbolic link"));
  EXPECT_THAT(form(link + "/"), HasSubstr("must be a folder, got a symbolic link"));
  EXPECT_THAT(form(file), HasSubstr("must be a folder, got something else"));
  EXPECT_THAT(form(folder.path() + "/missing/too"), HasSubstr("No such file or directory"));
  EXPECT_THAT(form("relative"), HasSubstr("must be an absolute path"));
}

TEST(RendezvousFolder, AGroupFolderPreparedByAStrangerIsRefused) {
  const TempFolder folder;
  const auto place = comm::rendezvous_place({0, 2, "hardening", folder.path(), kTimeoutNs});
  ASSERT_TRUE(place.ok());
  const std::string group = folder.path() + "/" + place.value().group;
  ASSERT_EQ(::symlink("/tmp", group.c_str()), 0);
  EXPECT_THAT(form(folder.path()), AllOf(HasSubstr(group), HasSubstr("got a symbolic link")));
  ASSERT_EQ(::unlink(group.c_str()), 0);
  ASSERT_EQ(::mkdir(group.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(group.c_str(), 0777), 0);
  EXPECT_THAT(form(folder.path()), AllOf(HasSubstr(group), HasSubstr("must have mode 0700")));
}

TEST(RendezvousFolder, OfAnotherUserIsRefused) {
  const TempFolder folder;
  if (::chown(folder.path().c_str(), 65534, 65534) != 0)
    GTEST_SKIP() << "needs CAP_CHOWN to give a folder to another user: " << std::strerror(errno);
  EXPECT_THAT(form(folder.path()), AllOf(HasSubstr("must belong to this user"), HasSubstr("got uid 65534")));
}

/// <folder>/<group>/ of the group that form() makes, as rank 0 makes it.
std::string make_group_folder(const std::string& folder) {
  const auto place = comm::rendezvous_place({0, 2, "hardening", folder, kTimeoutNs});
  const std::string path = folder + "/" + place.value().group;
  ::mkdir(path.c_str(), 0700);
  return path;
}

TEST(RendezvousSocket, AProcessOfAnotherUserIsNotAccepted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be another user, is uid " << ::geteuid();
  const TempFolder folder;
  const auto place = comm::rendezvous_place({0, 2, "hardening", folder.path(), kTimeoutNs});
  ASSERT_TRUE(place.ok());
  auto listener = comm::Listener::open(place.value());
  ASSERT_TRUE(listener.ok() && listener.value());
  for (const uid_t uid : {uid_t{65534}, uid_t{0}}) {
    // The folder keeps other users out, so this one keeps root's right to pass it.
    Child child([&]() -> std::string {
      ::prctl(PR_SET_SECUREBITS, 1UL << 2);  // SECBIT_NO_SETUID_FIXUP
      if (::setresuid(static_cast<uid_t>(-1), uid, static_cast<uid_t>(-1)) != 0) return "cannot change user";
      const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      fmt::format_to_n(address.sun_path, sizeof(address.sun_path) - 1, "{}/{}/rank0.sock", folder.path(),
                       place.value().group);
      const bool connected = ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
      return connected ? "connected" : std::strerror(errno);
    });
    ASSERT_EQ(child.wait(), "connected");
    EXPECT_EQ(comm::accept_peer(listener.value()->descriptor()).has_value(), uid == 0);
  }
}

TEST(RendezvousSocket, ARankZeroOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be another user, is uid " << ::geteuid();
  const TempFolder folder;
  const std::string group = make_group_folder(folder.path());
  Child stranger([&]() -> std::string {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    fmt::format_to_n(address.sun_path, sizeof(address.sun_path) - 1, "{}/rank0.sock", group);
    if (::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return std::strerror(errno);
    if (::seteuid(65534) != 0 || ::listen(socket, 4) != 0) return std::strerror(errno);  // listen() shows the user.
    ::pause();
    return "";
  });
  EXPECT_THAT(run_as_rank({1, 2, "hardening", folder.path(), kTimeoutNs}, use_memory),
              AllOf(StartsWith("invalid_argument: "), HasSubstr("must hold a socket of this user")));
}

/// Answers the first rank that comes with `message`.
std::string join_under_a_false_rank0(const std::function<comm::Message()>& make_message) {
  const TempFolder folder;
  const auto place = comm::rendezvous_place({0, 2, "hardening", folder.path(), kTimeoutNs});
  auto listener = comm::Listener::open(place.value());
  if (!listener.ok() || !listener.value()) return "cannot listen";
  Child rank1([&] { return run_as_rank({1, 2, "hardening", folder.path(), 3 * kSecond}, use_memory); });
  pollfd polled{listener.value()->descriptor(), POLLIN, 0};
  ::poll(&polled, 1, 5000);
  auto socket = comm::accept_peer(listener.value()->descriptor());
  if (!socket) return "nobody came";
  comm::Channel channel(*std::move(socket), 1 << 20);
  channel.queue(make_message());
  channel.send_queued();
  return rank1.wait(10 * kSecond);
}

comm::Message welcome(std::vector<std::shared_ptr<const comm::Descriptor>> descriptors) {
  return {comm::MessageKind::kOutcome, comm::encode(comm::Outcome{{}, {"rank 0", "rank 1"}, {}}),
          std::move(descriptors)};
}

std::shared_ptr<const comm::Descriptor> pipe_end(int which) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return nullptr;
  ::close(ends[1 - which]);
  return std::make_shared<const comm::Descriptor>(ends[which]);
}

TEST(RendezvousAnswer, WrongDescriptorsAreRefused) {
  const auto null_device = [] {
    return std::make_shared<const comm::Descriptor>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  };
  const auto refused = AllOf(StartsWith("peer_failed: join_process_group: "), HasSubstr("one pipe for each"));
  EXPECT_THAT(join_under_a_false_rank0([] { return welcome({}); }), refused);
  EXPECT_THAT(join_under_a_false_rank0([] { return welcome({pipe_end(0)}); }), refused);
  EXPECT_THAT(join_under_a_false_rank0([] { return welcome({pipe_end(0), pipe_end(0), pipe_end(0)}); }), refused);
  EXPECT_THAT(join_under_a_false_rank0([] { return welcome({pipe_end(0), pipe_end(1)}); }), refused);
  EXPECT_THAT(join_under_a_false_rank0([&] { return welcome({pipe_end(0), null_device()}); }), refused);
  EXPECT_THAT(join_under_a_false_rank0([] { return comm::Message{comm::MessageKind::kOutcome, "junk", {}}; }), refused);
}

TEST(RendezvousAnswer, AnEmptyOneEndsByTheDeadline) {
  EXPECT_THAT(join_under_a_false_rank0([] {
                return comm::Message{comm::MessageKind::kWaiting, {}, {}};
              }),
              StartsWith("timeout: join_process_group: rank 0 did not answer"));
}

TEST(RendezvousSocket, StrangersThatTalkNonsenseDoNotDisturbTheGroup) {
  const TempFolder folder;
  Child rank0([&] { return run_as_rank({0, 2, "hardening", folder.path(), kTimeoutNs}, use_memory); });
  const auto place = comm::rendezvous_place({1, 2, "hardening", folder.path(), kTimeoutNs});
  std::vector<comm::Channel> strangers;
  for (int i = 0; strangers.size() < 4 && i < 1000; ++i) {
    auto socket = comm::connect_to_rank0(place.value());
    ASSERT_TRUE(socket.ok());
    if (socket.value()) strangers.emplace_back(*std::move(socket.value()), 1 << 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ASSERT_EQ(strangers.size(), 4u);
  const std::string noise(1000, '\xff');
  EXPECT_EQ(::write(strangers[0].descriptor(), noise.data(), noise.size()), 1000);
  strangers[1].queue({comm::MessageKind::kArrival, "junk", {}});
  comm::WireArrival early;
  early.arrival.rank = 1;
  early.arrival.collective = comm::Collective::kAllGather;
  strangers[2].queue({comm::MessageKind::kArrival, comm::encode(early), {}});
  early.arrival.collective = comm::Collective::kJoin;  // Without a lifeline. The fourth one never says a word.
  strangers[3].queue({comm::MessageKind::kArrival, comm::encode(early), {}});
  for (comm::Channel& stranger : strangers) stranger.send_queued();
  EXPECT_EQ(run_as_rank({1, 2, "hardening", folder.path(), kTimeoutNs}, use_memory), "ok");
  EXPECT_EQ(rank0.wait(), "ok");
}

TEST(Limits, AFileSizeLimitIsAnErrorOnAllRanksAndNotASignal) {
  const TempFolder folder;
  EXPECT_THAT(
      form(folder.path(),
           [] {
             const rlimit limit{1 << 20, 1 << 20};
             ::setrlimit(RLIMIT_FSIZE, &limit);
           }),
      AllOf(StartsWith("out_of_memory: symmetric_memory.allocate: the file size limit must allow 16777216 bytes"),
            HasSubstr("ulimit -f")));
}

TEST(Limits, TooFewDescriptorsAreAnErrorAndNotAHang) {
  const TempFolder folder;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < 2; ++rank)
    children.push_back(Child([&, rank] {
      if (rank == 1) {
        const rlimit limit{8, 8};
        ::setrlimit(RLIMIT_NOFILE, &limit);
      }
      return run_as_rank({rank, 2, "hardening", folder.path(), kSecond}, use_memory);
    }));
  EXPECT_THAT(children[1].wait(5 * kSecond), HasSubstr("join_process_group: "));
  EXPECT_THAT(children[0].wait(5 * kSecond), ::testing::Not("ok"));
}

TEST(Containers, WithoutPidfdGetfdAndProcessVmCalls) {
  const TempFolder folder;
  EXPECT_EQ(form(folder.path(),
                 [] {
                   const auto deny = [](uint32_t number) {
                     return std::vector<sock_filter>{BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                                                     BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)};
                   };
                   std::vector<sock_filter> program{
                       BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr)))};
                   for (const uint32_t number :
                        {uint32_t{SYS_pidfd_getfd}, uint32_t{SYS_pidfd_open}, uint32_t{SYS_process_vm_readv},
                         uint32_t{SYS_process_vm_writev}, uint32_t{SYS_ptrace}})
                     for (const sock_filter& step : deny(number)) program.push_back(step);
                   program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
                   const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
                   if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                       ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 ||
                       ::syscall(SYS_pidfd_open, ::getpid(), 0) != -1 || errno != EPERM)
                     ::_exit(3);
                 }),
            "ok");
}

TEST(Containers, EachRankInItsOwnPidNamespaceWithATinyDevShm) {
  const TempFolder folder;
  Child probe([] { return std::string(::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0 ? "ok" : std::strerror(errno)); });
  if (const std::string text = probe.wait(); text != "ok")
    GTEST_SKIP() << "needs CAP_SYS_ADMIN for unshare(CLONE_NEWNS | CLONE_NEWPID), got: " << text;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < 2; ++rank)
    children.push_back(Child([&, rank]() -> std::string {
      if (::unshare(CLONE_NEWNS | CLONE_NEWPID) != 0 ||
          ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") != 0)
        return std::string("cannot unshare: ") + std::strerror(errno);
      Child inner([&, rank]() -> std::string {
        if (::mount("proc", "/proc", "proc", 0, nullptr) != 0) return std::string("no /proc: ") + std::strerror(errno);
        if (::getpid() != 1) return "not in a PID namespace";
        return run_as_rank({rank, 2, "hardening", folder.path(), kTimeoutNs}, use_memory);
      });
      return inner.wait();
    }));
  EXPECT_EQ(children[0].wait(), "ok");
  EXPECT_EQ(children[1].wait(), "ok");
}

TEST(Containers, AFolderThatCannotBeMadeIsOneErrorOnEveryRank) {
  Child probe([]() -> std::string {
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return "cannot drop root";
    return form("/megamoe_cannot_be_made");
  });
  EXPECT_THAT(probe.wait(),
              AllOf(StartsWith("invalid_argument: join_process_group: the rendezvous folder /megamoe_cannot_be_made "
                               "must be creatable, got "),
                    HasSubstr("set MEGAMOE_RENDEZVOUS"), ::testing::Not(HasSubstr(" | "))));
}

}  // namespace
}  // namespace megamoe::test
