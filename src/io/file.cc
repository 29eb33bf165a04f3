// Files by descriptor: positioned reads that report a short file, and writes that appear whole or not at all.
#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/text.h"

namespace megamoe::io {
namespace {

constexpr size_t kMaxTransferBytes = size_t{1} << 30;  // Linux moves at most 2 GiB - 4 KiB a call.

std::string error_text(int error_number) {
  char buffer[256];
  return strerror_r(error_number, buffer, sizeof(buffer));
}

/// What to do about it.
std::string_view advice_for(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check its permissions";
    case ENOSPC:
    case EDQUOT:
      return "free space, or choose another folder";
    default:
      return "choose another file";
  }
}

Status system_error(std::string_view where, const std::string& path, std::string_view must, int error_number) {
  return {Code::kBadFile, fmt::format("{}: {} must {}, got: {}; {}", where, printable(path), must,
                                      error_text(error_number), advice_for(error_number))};
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "something else";
}

void close_quietly(int descriptor) {
  if (descriptor >= 0) ::close(descriptor);
}

}  // namespace

ReadableFile::~ReadableFile() { close_quietly(descriptor_); }

ReadableFile::ReadableFile(ReadableFile&& other) noexcept
    : path_(std::move(other.path_)), num_bytes_(other.num_bytes_), descriptor_(std::exchange(other.descriptor_, -1)) {}

ReadableFile& ReadableFile::operator=(ReadableFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Result<ReadableFile> ReadableFile::open(const std::string& path) {
  ReadableFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a pipe without a writer must not hang before fstat can refuse it.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file.descriptor_ < 0) {
    // A socket cannot be opened at all (ENXIO).
    return system_error("file.open", path, "be a readable file", errno);
  }
  struct stat properties {};
  if (::fstat(file.descriptor_, &properties) != 0) return system_error("file.open", path, "be readable", errno);
  if (!S_ISREG(properties.st_mode)) {
    return Status(Code::kBadFile, fmt::format("file.open: {} must be a regular file, got {}; give a file's path",
                                              printable(path), kind_of(properties.st_mode)));
  }
  file.num_bytes_ = static_cast<uint64_t>(properties.st_size);
  return file;
}

Status ReadableFile::read_at(uint64_t offset, std::span<std::byte> destination, std::string_view what) const {
  size_t num_done = 0;
  while (num_done < destination.size()) {
    const size_t num_wanted = std::min(destination.size() - num_done, kMaxTransferBytes);
    const ssize_t num_read =
        ::pread(descriptor_, destination.data() + num_done, num_wanted, static_cast<off_t>(offset + num_done));
    if (num_read < 0) {
      if (errno == EINTR) continue;
      return system_error("file.read", path_, fmt::format("be readable at {}", what), errno);
    }
    if (num_read == 0) {
      return {Code::kBadFile,
              fmt::format("file.read: {} must hold {} ({} bytes from byte {}), {} bytes are missing: the file ends "
                          "early; copy it again",
                          printable(path_), what, destination.size(), offset, destination.size() - num_done)};
    }
    num_done += static_cast<size_t>(num_read);
  }
  return {};
}

Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes) {
  Result<ReadableFile> file = ReadableFile::open(path);
  if (!file.ok()) return file.status();
  if (file->num_bytes() > max_bytes) {
    return Status(Code::kBadFile, fmt::format("file.read: {} must be at most {} bytes, got {}", printable(path),
                                              max_bytes, file->num_bytes()));
  }
  std::string text(file->num_bytes(), '\0');
  MEGAMOE_RETURN_IF_ERROR(file->read_at(0, std::as_writable_bytes(std::span(text)), "its text"));
  return text;
}

AtomicFile::~AtomicFile() { discard(); }

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_path_, other.temporary_path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void AtomicFile::discard() {
  close_quietly(std::exchange(descriptor_, -1));
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
  temporary_path_.clear();
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  struct stat properties {};
  if (::stat(path.c_str(), &properties) == 0 && !S_ISREG(properties.st_mode)) {
    return Status(Code::kBadFile, fmt::format("file.create: {} must be a new name or a regular file, got {}; choose "
                                              "another name",
                                              printable(path), kind_of(properties.st_mode)));
  }
  AtomicFile file;
  file.path_ = path;
  static std::atomic<uint64_t> num_created{0};
  do {
    file.temporary_path_ = fmt::format("{}.{}.{}.tmp", path, ::getpid(), num_created.fetch_add(1));
    file.descriptor_ = ::open(file.temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file.descriptor_ < 0 && errno == EEXIST);
  if (file.descriptor_ < 0) {
    const int error_number = errno;
    file.temporary_path_.clear();
    return system_error("file.create", path, "be in a folder that can be written to", error_number);
  }
  return file;
}

Status AtomicFile::append(std::span<const std::byte> bytes) {
  size_t num_done = 0;
  while (num_done < bytes.size()) {
    const size_t num_wanted = std::min(bytes.size() - num_done, kMaxTransferBytes);
    const ssize_t num_written = ::write(descriptor_, bytes.data() + num_done, num_wanted);
    if (num_written < 0) {
      if (errno == EINTR) continue;
      return system_error("file.write", path_, fmt::format("take {} more bytes", bytes.size() - num_done), errno);
    }
    num_done += static_cast<size_t>(num_written);
  }
  return {};
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_) != 0 || ::close(std::exchange(descriptor_, -1)) != 0) {
    return system_error("file.write", path_, "reach the disk", errno);
  }
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return system_error("file.write", path_, "take its final name", errno);
  }
  temporary_path_.clear();
  return {};
}

}  // namespace megamoe::io
