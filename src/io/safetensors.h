// Safetensors files, read as if an enemy had written them, and written so that no reader sees half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "megamoe/status.h"

namespace megamoe::io {

/// The element types of the format; each has a whole number of bytes.
enum class FileDType : uint8_t {
  kBool = 0,
  kUInt8,
  kInt8,
  kFloat8E4M3,
  kFloat8E5M2,
  kFloat8E8M0,
  kInt16,
  kUInt16,
  kFloat16,
  kBFloat16,
  kInt32,
  kUInt32,
  kFloat32,
  kInt64,
  kUInt64,
  kFloat64,
};

/// The name in the file: "F8_E4M3", "BF16", ...
std::string_view name(FileDType dtype);
uint32_t element_bytes(FileDType dtype);
/// False where the name is not one of the above; `dtype` is then untouched.
bool parse_dtype(std::string_view text, FileDType& dtype);

/// One tensor of a file. Dense, row-major, little-endian.
struct TensorInfo {
  std::string name;
  FileDType dtype = FileDType::kUInt8;
  std::vector<uint64_t> shape;
  uint64_t file_offset = 0;  ///< Of the first byte, from the beginning of the file.
  uint64_t num_bytes = 0;    ///< Product of the shape times the element's bytes.

  uint64_t num_elements() const { return num_bytes / element_bytes(dtype); }
};

/// "F32 [2, 4]": how messages show a tensor's type.
std::string describe(const TensorInfo& info);

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              ///< Sorted by name; names are distinct.
  std::map<std::string, std::string> metadata;  ///< `__metadata__`.
  uint64_t data_offset = 0;                     ///< First byte after the header.

  /// Null where no tensor has this name.
  const TensorInfo* find(std::string_view tensor_name) const;
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  ///< The limit of the format's reference reader.

/// The length of the header out of the first 8 bytes, checked against the limit and the size of the file (kBadFile).
Result<uint64_t> parse_safetensors_length(std::span<const std::byte> file_start, uint64_t file_bytes,
                                          std::string_view where);

/// Parses and validates a header. `file_start` holds the first bytes of the file, at least the length field and the
/// header; `file_bytes` is the size of the whole file. Refused (kBadFile): a header that is too long, not an object,
/// deeper than 64, with duplicate keys, unknown dtypes or keys, numbers that are not non-negative integers, lengths
/// that are not shape times dtype, tensors that overlap, leave holes, pass the end of the file or stop before it.
/// `where` names the file in messages.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file_start, uint64_t file_bytes,
                                                   std::string_view where);

/// An open, validated file. Reads are positioned and independent, so const calls may run at the same time.
class SafetensorsFile {
 public:
  /// Regular files only (symbolic links are followed); only the header is read.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  const TensorInfo* find(std::string_view tensor_name) const { return header_.find(tensor_name); }

  /// Reads all of `info` (of this file's header) into `destination`, which must hold exactly `info.num_bytes`.
  /// kBadFile with the number of missing bytes where the file has become shorter.
  Status read(const TensorInfo& info, std::span<std::byte> destination) const;
  /// Reads `destination.size()` bytes that start `first_byte` bytes into the tensor.
  Status read_part(const TensorInfo& info, uint64_t first_byte, std::span<std::byte> destination) const;

 private:
  ReadableFile file_;
  SafetensorsHeader header_;
};

/// A tensor to be written; `data` holds product(shape) * element_bytes(dtype) bytes of caller-owned memory.
struct TensorToWrite {
  std::string name;
  FileDType dtype = FileDType::kUInt8;
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;
};

/// Writes a temporary file beside `path` and renames it: on error `path` is as it was before.
Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace megamoe::io
