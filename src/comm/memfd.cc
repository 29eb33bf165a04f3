// memfd_create with seals; a truncated file under a mapping would otherwise be a SIGBUS.
#include "comm/memfd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>

#include "comm/system_error.h"

namespace megamoe::comm {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kNoWriting = 0x0008 | 0x0010;  // F_SEAL_WRITE, F_SEAL_FUTURE_WRITE

Status cannot_create(uint64_t bytes, std::string_view step, int error_number) {
  return {Code::kOutOfMemory,
          fmt::format("symmetric_memory.allocate: {} must succeed for a memory file of {} bytes for "
                      "all ranks, got: {}; lower max_tokens or lift the limit",
                      step, bytes, error_text(error_number))};
}

}  // namespace

Result<Descriptor> create_memory_file(uint64_t bytes) {
  rlimit limit{};
  // Growing a file beyond this limit is a signal, not an error.
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
    return Status{Code::kOutOfMemory,
                  fmt::format("symmetric_memory.allocate: the file size limit must allow {} bytes for all ranks, got "
                              "{}; raise it (ulimit -f)",
                              bytes, limit.rlim_cur)};
  Descriptor file(::memfd_create("megamoe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) return cannot_create(bytes, "memfd_create", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return cannot_create(bytes, "ftruncate", errno);
  if (::fcntl(file.get(), F_ADD_SEALS, kFixedSize | F_SEAL_SEAL) != 0) return cannot_create(bytes, "sealing", errno);
  return file;
}

Status check_memory_file(int descriptor, uint64_t bytes) {
  const auto refuse = [](std::string_view must, const std::string& got) {
    return Status{Code::kPeerFailed, fmt::format("symmetric_memory.allocate: the memory received from rank 0 must {}, "
                                                 "got {}; run the same megamoe on all ranks",
                                                 must, got)};
  };
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return refuse("be an open file", error_text(errno));
  if (!S_ISREG(info.st_mode)) return refuse("be a memory file", "another kind of descriptor");
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) != bytes)
    return refuse(fmt::format("have {} bytes", bytes), fmt::format("{}", info.st_size));
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return refuse("be a memory file with seals", error_text(errno));
  if ((seals & kFixedSize) != kFixedSize)
    return refuse("be sealed against shrinking and growing", fmt::format("seals {:#x}", seals));
  if ((seals & kNoWriting) != 0) return refuse("be writable", fmt::format("seals {:#x}", seals));
  const int access = ::fcntl(descriptor, F_GETFL);
  if (access < 0 || (access & O_ACCMODE) != O_RDWR) return refuse("be open for reading and writing", "another mode");
  return {};
}

}  // namespace megamoe::comm
