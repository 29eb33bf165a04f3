// Safetensors files: opening, positioned reads, and writing as a whole.
#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "core/integer.h"
#include "io/json.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

constexpr uint64_t kHeaderAlignment = 8;

Result<std::string> header_text(std::span<const TensorToWrite> tensors,
                                const std::map<std::string, std::string>& metadata, const std::string& where) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : metadata) {
      if (!std::exchange(first, false)) text += ',';
      text += json_quoted(key) + ':' + json_quoted(value);
    }
    text += '}';
  }
  std::set<std::string_view> names;
  uint64_t data_bytes = 0;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: tensor names must be distinct and not __metadata__, got \"{}\"", where,
                                printable(tensor.name)));
    }
    uint64_t num_bytes = element_bytes(tensor.dtype);
    bool fits = true;
    for (const uint64_t extent : tensor.shape) fits = fits && core::checked_mul(num_bytes, extent, num_bytes);
    if (!fits || num_bytes != tensor.data.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: tensor \"{}\" must be given as many bytes as its dtype and shape say, got {}",
                                where, printable(tensor.name), tensor.data.size()));
    }
    if (text.size() > 1) text += ',';
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json_quoted(tensor.name),
                        name(tensor.dtype), fmt::join(tensor.shape, ","), data_bytes, data_bytes + num_bytes);
    data_bytes += num_bytes;
  }
  text += '}';
  // The data should begin aligned; the format allows spaces after the header.
  text.append(core::align_up<uint64_t>(text.size(), kHeaderAlignment) - text.size(), ' ');
  return text;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<ReadableFile> file = ReadableFile::open(path);
  if (!file.ok()) return file.status();
  const std::string where = fmt::format("safetensors.open: {}", printable(path, 1000));
  std::array<std::byte, 8> length{};
  const std::span<std::byte> length_read =
      std::span(length).first(std::min<uint64_t>(length.size(), file->num_bytes()));
  MEGAMOE_RETURN_IF_ERROR(file->read_at(0, length_read, "the header length"));
  const Result<uint64_t> header_bytes = parse_safetensors_length(length_read, file->num_bytes(), where);
  if (!header_bytes.ok()) return header_bytes.status();

  SafetensorsFile opened;
  {
    std::vector<std::byte> start(length.size() + header_bytes.value());
    MEGAMOE_RETURN_IF_ERROR(file->read_at(0, start, "the header"));
    Result<SafetensorsHeader> header = parse_safetensors_header(start, file->num_bytes(), where);
    if (!header.ok()) return header.status();
    opened.header_ = std::move(header).value();
  }
  opened.file_ = std::move(file).value();
  return opened;
}

Status SafetensorsFile::read(const TensorInfo& info, std::span<std::byte> destination) const {
  if (destination.size() != info.num_bytes) {
    return {Code::kInvalidArgument, fmt::format("safetensors.read: tensor \"{}\" must be read into {} bytes, got {}",
                                                printable(info.name), info.num_bytes, destination.size())};
  }
  return read_part(info, 0, destination);
}

Status SafetensorsFile::read_part(const TensorInfo& info, uint64_t first_byte, std::span<std::byte> destination) const {
  if (first_byte > info.num_bytes || destination.size() > info.num_bytes - first_byte) {
    return {Code::kInvalidArgument,
            fmt::format("safetensors.read: a part must lie inside tensor \"{}\" of {} bytes, got {} bytes from {}",
                        printable(info.name), info.num_bytes, destination.size(), first_byte)};
  }
  return file_.read_at(info.file_offset + first_byte, destination, fmt::format("tensor \"{}\"", printable(info.name)));
}

Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata) {
  const Result<std::string> header =
      header_text(tensors, metadata, fmt::format("safetensors.write: {}", printable(path, 1000)));
  if (!header.ok()) return header.status();
  if (header.value().size() > kMaxHeaderBytes) {
    return {Code::kInvalidArgument, fmt::format("safetensors.write: the header must be at most {} bytes, got {}",
                                                kMaxHeaderBytes, header.value().size())};
  }
  std::array<std::byte, 8> length{};
  for (size_t idx = 0; idx < length.size(); ++idx) {
    length[idx] = static_cast<std::byte>(uint64_t{header.value().size()} >> (8 * idx) & 0xff);
  }
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  MEGAMOE_RETURN_IF_ERROR(file->append(length));
  MEGAMOE_RETURN_IF_ERROR(file->append(std::as_bytes(std::span(header.value()))));
  for (const TensorToWrite& tensor : tensors) MEGAMOE_RETURN_IF_ERROR(file->append(tensor.data));
  return file->commit();
}

}  // namespace megamoe::io
