// Files by descriptor: positioned reads that report a short file, and writes that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::io {

/// An open regular file. Nothing is mapped, so a file that shrinks later is an error and never a signal.
class ReadableFile {
 public:
  ReadableFile() = default;
  ~ReadableFile();
  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;

  /// Follows symbolic links; refuses pipes, devices, sockets and folders without blocking on them.
  static Result<ReadableFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t num_bytes() const { return num_bytes_; }  ///< When it was opened.

  /// Fills `destination` from byte `offset`. kBadFile naming `what` and the missing bytes where the file ends early.
  Status read_at(uint64_t offset, std::span<std::byte> destination, std::string_view what) const;

 private:
  std::string path_;
  uint64_t num_bytes_ = 0;
  int descriptor_ = -1;
};

/// A whole text file of at most `max_bytes`.
Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes);

/// A file that appears under its name only on commit(); otherwise nothing is left behind.
class AtomicFile {
 public:
  AtomicFile() = default;
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;

  /// Creates a temporary file in the folder of `path`; an existing `path` must be a regular file.
  static Result<AtomicFile> create(const std::string& path);

  Status append(std::span<const std::byte> bytes);
  /// Flushes to the disk and renames.
  Status commit();

 private:
  void discard();

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
};

}  // namespace megamoe::io
