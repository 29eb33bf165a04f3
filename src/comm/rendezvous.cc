// Folders are opened by descriptor and checked on the descriptor, so that nothing can be exchanged between check and
// use; socket paths go through /proc/self/fd, so that their length does not matter.
#include "comm/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "comm/system_error.h"

namespace megamoe::comm {
namespace {

constexpr char kSocketName[] = "rank0.sock";
constexpr int kLockAttempts = 20;
constexpr char kRemedy[] = "set MEGAMOE_RENDEZVOUS to a folder of your own with mode 0700";

Status refuse(const std::string& path, std::string_view must, std::string_view got) {
  return {Code::kInvalidArgument,
          fmt::format("join_process_group: the rendezvous folder {} must {}, got {}; {}", path, must, got, kRemedy)};
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

/// Why a folder that was just opened, or could not be, is no place to meet.
Status check_private(int folder, const std::string& path) {
  struct stat info {};
  if (::fstat(folder, &info) != 0) return refuse(path, "be readable", error_text(errno));
  if (info.st_uid != ::geteuid())
    return refuse(path, fmt::format("belong to this user (uid {})", ::geteuid()), fmt::format("uid {}", info.st_uid));
  if ((info.st_mode & 0777) != 0700)
    return refuse(path, "have mode 0700, so that nobody else can enter it",
                  fmt::format("{:04o}", info.st_mode & 07777));
  return {};
}

/// The folder, if it exists; `create` makes it first.
Result<std::optional<Descriptor>> open_folder(int parent, const std::string& name, const std::string& path, bool create,
                                              bool* created = nullptr) {
  if (create) {
    if (::mkdirat(parent, name.c_str(), 0700) == 0) {
      if (created != nullptr) *created = true;
    } else if (errno != EEXIST && errno != ENOENT) {
      return refuse(path, "be creatable", error_text(errno));
    } else if (errno == ENOENT && parent == AT_FDCWD) {
      return refuse(path, "have an existing parent folder", error_text(errno));
    }
  }
  Descriptor folder(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.is_open()) {
    const int error_number = errno;
    if (error_number == ENOENT) return std::optional<Descriptor>();
    struct stat info {};
    if (::fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      if (S_ISLNK(info.st_mode)) return refuse(path, "be a folder", "a symbolic link");
      if (!S_ISDIR(info.st_mode)) return refuse(path, "be a folder", "something else");
      if (info.st_uid != ::geteuid()) return refuse(path, "belong to this user", fmt::format("uid {}", info.st_uid));
    }
    return refuse(path, "be readable", error_text(error_number));
  }
  MEGAMOE_RETURN_IF_ERROR(check_private(folder.get(), path));
  return std::optional<Descriptor>(std::move(folder));
}

/// The address of the socket in an open folder: short, whatever the folder's path is.
Result<sockaddr_un> socket_address(int folder) {
  static const bool kHasProc = ::access("/proc/self/fd", X_OK) == 0;
  if (!kHasProc)
    return Status{Code::kNotSupported,
                  "join_process_group: /proc must be mounted, since the rendezvous socket is reached by descriptor; "
                  "mount it, or run the ranks as threads"};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", folder, kSocketName);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool belongs_to_this_user(int socket) {
  ucred peer{};
  socklen_t num_bytes = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &num_bytes) == 0 && peer.uid == ::geteuid();
}

Status socket_error(std::string_view step, int error_number) {
  return {Code::kNotSupported, fmt::format("join_process_group: {} must succeed for the rendezvous socket, got: {}; "
                                           "allow AF_UNIX sockets, or run the ranks as threads",
                                           step, error_text(error_number))};
}

Descriptor new_socket() { return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

/// The folder still is what the path names: nobody removed it between open and lock.
bool is_current(int base, const std::string& name, int folder) {
  struct stat by_path {
  }, by_descriptor{};
  return ::fstatat(base, name.c_str(), &by_path, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(folder, &by_descriptor) == 0 &&
         by_path.st_ino == by_descriptor.st_ino && by_path.st_dev == by_descriptor.st_dev;
}

/// FNV-1a: folder names of fixed length from group names of any length and content.
uint64_t hash_of(std::string_view text, uint64_t state) {
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return state;
}

}  // namespace

Result<RendezvousPlace> rendezvous_place(const ProcessGroupOptions& options) {
  RendezvousPlace place;
  place.group = fmt::format("group-{:016x}{:016x}", hash_of(options.name, 0xcbf29ce484222325u),
                            hash_of(options.name, 0x9ae16a3b2f90404fu));
  if (!options.rendezvous_dir.empty()) {
    place.is_default = false;
    place.base = options.rendezvous_dir;
    while (place.base.size() > 1 && place.base.back() == '/') place.base.pop_back();
    if (place.base.front() != '/') return refuse(place.base, "be an absolute path", "a relative one");
    return place;
  }
  const char* const runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  struct stat info {};
  if (runtime_dir != nullptr && runtime_dir[0] == '/' && ::lstat(runtime_dir, &info) == 0 && S_ISDIR(info.st_mode) &&
      info.st_uid == ::geteuid() && (info.st_mode & 0777) == 0700)
    place.base = fmt::format("{}/megamoe", runtime_dir);
  else
    place.base = fmt::format("/tmp/megamoe-{}", ::geteuid());
  return place;
}

Result<std::optional<Listener>> Listener::open(const RendezvousPlace& place) {
  Listener listener;
  listener.place_ = place;
  bool created = false;
  Result<std::optional<Descriptor>> base = open_folder(AT_FDCWD, place.base, place.base, true, &created);
  if (!base.ok()) return base.status();
  if (!base.value()) return std::optional<Listener>();
  const std::string path = place.base + "/" + place.group;
  Result<std::optional<Descriptor>> folder = open_folder(base.value()->get(), place.group, path, true);
  if (!folder.ok()) return folder.status();
  if (!folder.value()) return std::optional<Listener>();
  if (::flock(folder.value()->get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return std::optional<Listener>();
    return refuse(path, "lie on a file system with locks", error_text(errno));
  }
  if (!is_current(base.value()->get(), place.group, folder.value()->get())) return std::optional<Listener>();
  listener.removes_base_ = place.is_default || created;
  listener.base_ = *std::move(base.value());
  listener.folder_ = *std::move(folder.value());

  const int folder_descriptor = listener.folder_.get();
  ::unlinkat(folder_descriptor, kSocketName, 0);  // Left by a dead process: the lock is ours.
  Result<sockaddr_un> address = socket_address(folder_descriptor);
  if (!address.ok()) return address.status();
  Descriptor socket = new_socket();
  if (!socket.is_open()) return socket_error("socket", errno);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.value()), sizeof(sockaddr_un)) != 0)
    return socket_error("bind", errno);
  listener.socket_ = std::move(socket);
  if (::fchmodat(folder_descriptor, kSocketName, 0600, 0) != 0) return socket_error("chmod", errno);
  if (::listen(listener.socket_.get(), SOMAXCONN) != 0) return socket_error("listen", errno);
  return std::optional<Listener>(std::move(listener));
}

void Listener::remove() {
  if (!folder_.is_open()) return;
  if (socket_.is_open()) ::unlinkat(folder_.get(), kSocketName, 0);
  socket_.reset();
  ::unlinkat(base_.get(), place_.group.c_str(), AT_REMOVEDIR);
  if (removes_base_) ::rmdir(place_.base.c_str());  // Refused by the kernel while other groups form there.
  folder_.reset();
  base_.reset();
}

Result<std::optional<Descriptor>> connect_to_rank0(const RendezvousPlace& place) {
  Result<std::optional<Descriptor>> base = open_folder(AT_FDCWD, place.base, place.base, false);
  if (!base.ok()) return base.status();
  if (!base.value()) {
    // Rank 0 creates it, unless it cannot: then every rank says so at once.
    if (::faccessat(AT_FDCWD, parent_of(place.base).c_str(), W_OK | X_OK, AT_EACCESS) != 0)
      return refuse(place.base, "be creatable", error_text(errno));
    return std::optional<Descriptor>();
  }
  const std::string path = place.base + "/" + place.group;
  Result<std::optional<Descriptor>> folder = open_folder(base.value()->get(), place.group, path, false);
  if (!folder.ok()) return folder.status();
  if (!folder.value()) return std::optional<Descriptor>();
  Result<sockaddr_un> address = socket_address(folder.value()->get());
  if (!address.ok()) return address.status();
  Descriptor socket = new_socket();
  if (!socket.is_open()) return socket_error("socket", errno);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.value()), sizeof(sockaddr_un)) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR || errno == EACCES)
      return std::optional<Descriptor>();
    return socket_error("connect", errno);
  }
  if (!belongs_to_this_user(socket.get()))
    return refuse(path, "hold a socket of this user", "a process of another user behind it");
  return std::optional<Descriptor>(std::move(socket));
}

std::optional<Descriptor> accept_peer(int listener) {
  Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open() || !belongs_to_this_user(socket.get())) return std::nullopt;
  return socket;
}

void remove_abandoned(const RendezvousPlace& place) {
  Result<std::optional<Descriptor>> base = open_folder(AT_FDCWD, place.base, place.base, false);
  if (!base.ok() || !base.value()) return;
  Result<std::optional<Descriptor>> folder = open_folder(base.value()->get(), place.group, place.group, false);
  if (!folder.ok() || !folder.value()) return;
  // A process that was killed a moment ago may not have dropped its lock yet.
  for (int attempt = 0; ::flock(folder.value()->get(), LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (attempt == kLockAttempts) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!is_current(base.value()->get(), place.group, folder.value()->get())) return;
  ::unlinkat(folder.value()->get(), kSocketName, 0);
  ::unlinkat(base.value()->get(), place.group.c_str(), AT_REMOVEDIR);
  if (place.is_default) ::rmdir(place.base.c_str());
}

}  // namespace megamoe::comm
