// The header of a safetensors file: JSON into checked extents.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "core/integer.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxDims = 32;
constexpr size_t kMaxMetadataEntries = 65536;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeRow {
  FileDType dtype;
  std::string_view name;
  uint32_t num_bytes;
};

constexpr std::array<DTypeRow, 16> kDTypes = {{
    {FileDType::kBool, "BOOL", 1},
    {FileDType::kUInt8, "U8", 1},
    {FileDType::kInt8, "I8", 1},
    {FileDType::kFloat8E4M3, "F8_E4M3", 1},
    {FileDType::kFloat8E5M2, "F8_E5M2", 1},
    {FileDType::kFloat8E8M0, "F8_E8M0", 1},
    {FileDType::kInt16, "I16", 2},
    {FileDType::kUInt16, "U16", 2},
    {FileDType::kFloat16, "F16", 2},
    {FileDType::kBFloat16, "BF16", 2},
    {FileDType::kInt32, "I32", 4},
    {FileDType::kUInt32, "U32", 4},
    {FileDType::kFloat32, "F32", 4},
    {FileDType::kInt64, "I64", 8},
    {FileDType::kUInt64, "U64", 8},
    {FileDType::kFloat64, "F64", 8},
}};

constexpr bool dtypes_in_order() {
  for (size_t idx = 0; idx < kDTypes.size(); ++idx) {
    if (static_cast<size_t>(kDTypes[idx].dtype) != idx) return false;
  }
  return true;
}
static_assert(dtypes_in_order());

/// Turns the events of a header into tensors whose extents are still relative to the data.
class HeaderVisitor final : public JsonVisitor {
 public:
  HeaderVisitor(std::string_view where, SafetensorsHeader& header) : where_(where), header_(header) {}

  Status begin_object() override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kNames;
        return {};
      case Place::kTensorValue:
        place_ = Place::kTensor;
        begin_tensor();
        return {};
      case Place::kMetadataValue:
        place_ = Place::kMetadata;
        return {};
      default:
        return unexpected("an object");
    }
  }

  Status key(std::string& text) override {
    key_ = text;
    switch (place_) {
      case Place::kNames:
        place_ = text == kMetadataKey ? Place::kMetadataValue : Place::kTensorValue;
        name_ = std::move(text);
        return {};
      case Place::kTensor:
        if (text == "dtype") {
          place_ = Place::kDType;
        } else if (text == "shape") {
          place_ = Place::kShapeValue;
        } else if (text == "data_offsets") {
          place_ = Place::kOffsetsValue;
        } else {
          return bad(fmt::format("tensor \"{}\" must have the keys dtype, shape and data_offsets only, got \"{}\"",
                                 printable(name_), printable(text)));
        }
        return {};
      case Place::kMetadata:
        place_ = Place::kMetadataText;
        return {};
      default:
        return unexpected("a key");
    }
  }

  Status end_object() override {
    switch (place_) {
      case Place::kNames:
        place_ = Place::kEnd;
        return {};
      case Place::kTensor:
        place_ = Place::kNames;
        return end_tensor();
      case Place::kMetadata:
        place_ = Place::kNames;
        return {};
      default:
        return unexpected("the end of an object");
    }
  }

  Status begin_array() override {
    if (place_ == Place::kShapeValue) {
      place_ = Place::kShape;
      has_shape_ = true;
      return {};
    }
    if (place_ == Place::kOffsetsValue) {
      place_ = Place::kOffsets;
      return {};
    }
    return unexpected("an array");
  }

  Status end_array() override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return unexpected("the end of an array");
    place_ = Place::kTensor;
    return {};
  }

  Status string(std::string& text) override {
    if (place_ == Place::kMetadataText) {
      place_ = Place::kMetadata;
      header_.metadata.emplace(std::move(key_), std::move(text));
      if (header_.metadata.size() > kMaxMetadataEntries) {
        return bad(fmt::format("__metadata__ must have at most {} entries, got more", kMaxMetadataEntries));
      }
      return {};
    }
    if (place_ != Place::kDType) return unexpected("a string");
    place_ = Place::kTensor;
    FileDType dtype{};
    if (!parse_dtype(text, dtype)) {
      std::vector<std::string_view> known;
      known.reserve(kDTypes.size());
      for (const DTypeRow& row : kDTypes) known.push_back(row.name);
      return bad(fmt::format("tensor \"{}\" must have a dtype out of {}, got \"{}\"", printable(name_),
                             fmt::join(known, " "), printable(text)));
    }
    dtype_ = dtype;
    return {};
  }

  Status number(const JsonNumber& number) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return unexpected("a number");
    std::vector<uint64_t>& list = place_ == Place::kShape ? shape_ : offsets_;
    const size_t max_entries = place_ == Place::kShape ? kMaxDims : 2;
    const std::string_view list_name = place_ == Place::kShape ? "shape" : "data_offsets";
    if (number.kind == JsonNumber::Kind::kNegative) {
      return bad(fmt::format("{} of tensor \"{}\" must be non-negative integers, got {}", list_name, printable(name_),
                             number.real_value));
    }
    if (number.kind == JsonNumber::Kind::kReal || number.unsigned_value > INT64_MAX) {
      return bad(fmt::format(
          "{} of tensor \"{}\" must be integers below 2^63, got {}", list_name, printable(name_),
          number.kind == JsonNumber::Kind::kReal ? printable(number.text, 40) : std::to_string(number.unsigned_value)));
    }
    if (list.size() == max_entries) {
      return bad(fmt::format("{} of tensor \"{}\" must have at most {} entries, got more", list_name, printable(name_),
                             max_entries));
    }
    list.push_back(number.unsigned_value);
    return {};
  }

  Status boolean(bool /*value*/) override { return unexpected("a boolean"); }
  Status null() override { return unexpected("null"); }

 private:
  enum class Place : uint8_t {
    kStart,
    kNames,
    kTensorValue,
    kTensor,
    kDType,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kEnd,
  };

  Status bad(const std::string& sentence) const { return {Code::kBadFile, fmt::format("{}: {}", where_, sentence)}; }

  Status unexpected(std::string_view what) const {
    switch (place_) {
      case Place::kStart:
        return bad(fmt::format("the header must be a JSON object, got {}", what));
      case Place::kTensorValue:
        return bad(fmt::format("tensor \"{}\" must be described by an object, got {}", printable(name_), what));
      case Place::kDType:
        return bad(fmt::format("dtype of tensor \"{}\" must be a string, got {}", printable(name_), what));
      case Place::kShapeValue:
      case Place::kShape:
        return bad(fmt::format("shape of tensor \"{}\" must be an array of integers, got {}", printable(name_), what));
      case Place::kOffsetsValue:
      case Place::kOffsets:
        return bad(fmt::format("data_offsets of tensor \"{}\" must be an array of two integers, got {}",
                               printable(name_), what));
      case Place::kMetadataValue:
      case Place::kMetadataText:
        return bad(fmt::format("__metadata__ must be an object of strings, got {}", what));
      default:
        return bad(fmt::format("the header must describe tensors only, got {}", what));
    }
  }

  void begin_tensor() {
    dtype_.reset();
    has_shape_ = false;
    shape_.clear();
    offsets_.clear();
  }

  Status end_tensor() {
    if (!dtype_.has_value() || !has_shape_ || offsets_.size() != 2) {
      const std::string_view missing = !dtype_.has_value() ? "dtype" : !has_shape_ ? "shape" : "two data_offsets";
      return bad(fmt::format("tensor \"{}\" must have {}, which the header lacks", printable(name_), missing));
    }
    const auto [begin, end] = std::pair(offsets_[0], offsets_[1]);
    if (begin > end) {
      return bad(fmt::format("data_offsets of tensor \"{}\" must begin before they end, got [{}, {}]", printable(name_),
                             begin, end));
    }
    uint64_t num_bytes = element_bytes(*dtype_);
    for (const uint64_t extent : shape_) {
      if (!core::checked_mul(num_bytes, extent, num_bytes)) {
        return bad(fmt::format("tensor \"{}\" must have fewer than 2^64 bytes, got shape [{}]", printable(name_),
                               fmt::join(shape_, ", ")));
      }
    }
    if (num_bytes != end - begin) {
      return bad(
          fmt::format("tensor \"{}\" must have as many bytes as its dtype and shape say, {} [{}] is {}, got {} "
                      "in data_offsets [{}, {}]",
                      printable(name_), name(*dtype_), fmt::join(shape_, ", "), num_bytes, end - begin, begin, end));
    }
    TensorInfo& info = header_.tensors.emplace_back();
    info.name = std::move(name_);
    info.dtype = *dtype_;
    info.shape.assign(shape_.begin(), shape_.end());
    info.file_offset = begin;
    info.num_bytes = num_bytes;
    return {};
  }

  std::string_view where_;
  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  std::string key_;
  std::string name_;
  std::optional<FileDType> dtype_;
  bool has_shape_ = false;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
};

/// The tensors must tile the data: no byte twice, none unused, none beyond the end. Offsets are relative to the data.
Status check_coverage(const std::vector<TensorInfo>& tensors, uint64_t data_bytes, std::string_view where) {
  std::vector<const TensorInfo*> by_offset;
  by_offset.reserve(tensors.size());
  for (const TensorInfo& info : tensors) by_offset.push_back(&info);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->file_offset, a->num_bytes) < std::pair(b->file_offset, b->num_bytes);
  });
  uint64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo* info : by_offset) {
    if (info->file_offset < covered) {
      return {Code::kBadFile,
              fmt::format("{}: tensors must not overlap, \"{}\" begins at data byte {} and \"{}\" ends at {}", where,
                          printable(info->name), info->file_offset, printable(previous->name), covered)};
    }
    if (info->file_offset > covered) {
      return {Code::kBadFile,
              fmt::format("{}: tensors must leave no hole, got {} unused bytes before \"{}\" at data byte {}", where,
                          info->file_offset - covered, printable(info->name), info->file_offset)};
    }
    covered += info->num_bytes;
    previous = info;
  }
  if (covered > data_bytes) {
    const auto cut = std::find_if(by_offset.begin(), by_offset.end(), [&](const TensorInfo* info) {
      return info->file_offset + info->num_bytes > data_bytes;
    });
    return {Code::kBadFile,
            fmt::format("{}: the file must hold {} bytes of data as its header says, {} bytes are missing (the first "
                        "tensor that is not whole is \"{}\"); copy the file again",
                        where, covered, covered - data_bytes, printable((*cut)->name))};
  }
  if (covered < data_bytes) {
    return {Code::kBadFile, fmt::format("{}: the file must end with its last tensor, got {} bytes after it", where,
                                        data_bytes - covered)};
  }
  return {};
}

}  // namespace

std::string_view name(FileDType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

uint32_t element_bytes(FileDType dtype) { return kDTypes[static_cast<size_t>(dtype)].num_bytes; }

bool parse_dtype(std::string_view text, FileDType& dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == text) {
      dtype = row.dtype;
      return true;
    }
  }
  return false;
}

std::string describe(const TensorInfo& info) {
  return fmt::format("{} [{}]", name(info.dtype), fmt::join(info.shape, ", "));
}

const TensorInfo* SafetensorsHeader::find(std::string_view tensor_name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), tensor_name,
                       [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
  return found != tensors.end() && found->name == tensor_name ? &*found : nullptr;
}

Result<uint64_t> parse_safetensors_length(std::span<const std::byte> file_start, uint64_t file_bytes,
                                          std::string_view where) {
  if (file_bytes < kLengthBytes || file_start.size() < kLengthBytes) {
    return Status(Code::kBadFile, fmt::format("{}: a safetensors file must begin with an 8-byte length, got {} bytes",
                                              where, std::min<uint64_t>(file_bytes, file_start.size())));
  }
  uint64_t header_bytes = 0;
  for (size_t idx = kLengthBytes; idx-- > 0;) {
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(file_start[idx]);
  }
  if (header_bytes > kMaxHeaderBytes) {
    return Status(Code::kBadFile,
                  fmt::format("{}: the header must be at most {} bytes, its length field says {}; this is no "
                              "safetensors file, or a damaged one",
                              where, kMaxHeaderBytes, header_bytes));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return Status(Code::kBadFile,
                  fmt::format("{}: the header must lie inside the file, its length field says {} bytes, {} bytes are "
                              "missing; copy the file again",
                              where, header_bytes, header_bytes - (file_bytes - kLengthBytes)));
  }
  return header_bytes;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file_start, uint64_t file_bytes,
                                                   std::string_view where) {
  const Result<uint64_t> header_bytes = parse_safetensors_length(file_start, file_bytes, where);
  if (!header_bytes.ok()) return header_bytes.status();
  if (file_start.size() - kLengthBytes < header_bytes.value()) {
    return Status(Code::kBadFile,
                  fmt::format("{}: the header must be given whole, {} of its {} bytes are missing", where,
                              header_bytes.value() - (file_start.size() - kLengthBytes), header_bytes.value()));
  }
  const std::string_view text(reinterpret_cast<const char*>(file_start.data()) + kLengthBytes, header_bytes.value());
  if (text.empty() || text.front() != '{') {
    return Status(Code::kBadFile, fmt::format("{}: the header must be a JSON object that begins with '{{', got \"{}\"",
                                              where, printable(text.substr(0, 1))));
  }
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + header_bytes.value();
  HeaderVisitor visitor(where, header);
  MEGAMOE_RETURN_IF_ERROR(parse_json(text, where, visitor));
  MEGAMOE_RETURN_IF_ERROR(check_coverage(header.tensors, file_bytes - header.data_offset, where));
  for (TensorInfo& info : header.tensors) info.file_offset += header.data_offset;
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  return header;
}

}  // namespace megamoe::io
