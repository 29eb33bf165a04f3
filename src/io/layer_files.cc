// What goes into a layer and what comes out of it, as files.
#include "io/layer_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/formats/bf16.h"
#include "core/integer.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

constexpr std::array<std::string_view, 4> kRoutingNames = {"topk_ids", "experts_in1", "topk_weights", "experts_in2"};

std::string names_of(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const TensorInfo& info : file.header().tensors) names.push_back(info.name);
  return names.empty() ? "no tensors" : join_names(names, 16);
}

/// Reads tensors of one file; every message names the file.
class RowReader {
 public:
  RowReader(const SafetensorsFile& file, std::string where) : file_(file), where_(std::move(where)) {}

  Status refuse(Code code, const std::string& sentence) const {
    return {code, fmt::format("{}: {}", where_, sentence)};
  }

  /// The tensor under one of two names.
  Status find(std::string_view tensor_name, std::string_view alias, const TensorInfo*& info) const {
    const TensorInfo* by_alias = alias.empty() ? nullptr : file_.find(alias);
    info = file_.find(tensor_name);
    if (info != nullptr && by_alias != nullptr) {
      return refuse(Code::kBadFile,
                    fmt::format("{} and {} mean the same and must not both be there; remove one", tensor_name, alias));
    }
    if (info == nullptr) info = by_alias;
    if (info == nullptr) {
      return refuse(Code::kBadFile,
                    fmt::format("tensor \"{}\" must be there{}, found {}", printable(tensor_name),
                                alias.empty() ? "" : fmt::format(" (or \"{}\")", alias), names_of(file_)));
    }
    if (info->shape.size() != 2) {
      return refuse(Code::kBadFile,
                    fmt::format("tensor \"{}\" must have two dimensions, rows of tokens, got {}; reshape it",
                                printable(info->name), describe(*info)));
    }
    return {};
  }

  /// Reads the elements as they are; `T` has the size of the file's type.
  template <class T>
  Status read(const TensorInfo& info, Buffer<T>& buffer) const {
    Result<Buffer<T>> result = Buffer<T>::allocate(info.num_elements(), printable(info.name));
    if (!result.ok()) return result.status();
    buffer = std::move(result).value();
    return file_.read(info, std::as_writable_bytes(buffer.span()));
  }

  /// Reads F32 or BF16 as FP32.
  Status read_floats(const TensorInfo& info, Buffer<float>& values) const {
    if (info.dtype == FileDType::kFloat32) return read(info, values);
    if (info.dtype != FileDType::kBFloat16) {
      return refuse(Code::kNotSupported, fmt::format("tensor \"{}\" must be F32 or BF16, got {}; convert it",
                                                     printable(info.name), describe(info)));
    }
    return read_converted<uint16_t>(info, values, core::bf16_decode);
  }

  /// Reads I64 or I32 as 64-bit integers.
  Status read_ids(const TensorInfo& info, Buffer<int64_t>& ids) const {
    if (info.dtype == FileDType::kInt64) return read(info, ids);
    if (info.dtype != FileDType::kInt32) {
      return refuse(Code::kNotSupported, fmt::format("tensor \"{}\" must be I64 or I32, got {}; convert it",
                                                     printable(info.name), describe(info)));
    }
    return read_converted<int32_t>(info, ids, [](int32_t id) { return int64_t{id}; });
  }

 private:
  template <class From, class To, class Convert>
  Status read_converted(const TensorInfo& info, Buffer<To>& values, Convert convert) const {
    Buffer<From> stored;
    MEGAMOE_RETURN_IF_ERROR(read(info, stored));
    Result<Buffer<To>> result = Buffer<To>::allocate(stored.size(), printable(info.name));
    if (!result.ok()) return result.status();
    values = std::move(result).value();
    for (uint64_t idx = 0; idx < stored.size(); ++idx) values[idx] = convert(stored[idx]);
    return {};
  }

  const SafetensorsFile& file_;
  std::string where_;
};

}  // namespace

Result<std::vector<std::string>> read_tensor_names(const std::string& path) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  std::vector<std::string> names;
  for (const TensorInfo& info : file->header().tensors) names.push_back(info.name);
  return names;
}

Result<LayerInputs> read_layer_inputs(const std::string& path, RoutingInFile routing) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  const RowReader reader(file.value(), fmt::format("inputs.read: {}", printable(path, 1000)));
  const TensorInfo* tokens = nullptr;
  const TensorInfo* ids = nullptr;
  const TensorInfo* topk_weights = nullptr;
  MEGAMOE_RETURN_IF_ERROR(reader.find("hidden_states", "", tokens));
  if (tokens->dtype != FileDType::kBFloat16) {
    return reader.refuse(Code::kNotSupported,
                         fmt::format("hidden_states must be BF16, got {}; convert it", describe(*tokens)));
  }
  LayerInputs inputs;
  inputs.num_tokens = tokens->shape[0];
  if (tokens->shape[1] == 0 || tokens->shape[1] > UINT32_MAX) {
    return reader.refuse(Code::kBadFile, fmt::format("hidden_states must have columns, got {}", describe(*tokens)));
  }
  inputs.hidden = static_cast<uint32_t>(tokens->shape[1]);
  const bool has_routing = std::any_of(kRoutingNames.begin(), kRoutingNames.end(),
                                       [&](std::string_view each) { return file->find(each) != nullptr; });
  if (routing == RoutingInFile::kOptional && !has_routing) {
    MEGAMOE_RETURN_IF_ERROR(reader.read(*tokens, inputs.hidden_states));
    return inputs;
  }
  MEGAMOE_RETURN_IF_ERROR(reader.find("topk_ids", "experts_in1", ids));
  MEGAMOE_RETURN_IF_ERROR(reader.find("topk_weights", "experts_in2", topk_weights));
  if (ids->shape[0] != tokens->shape[0]) {
    return reader.refuse(Code::kBadFile,
                         fmt::format("{} must have a row for each of the {} rows of hidden_states, got {}", ids->name,
                                     tokens->shape[0], describe(*ids)));
  }
  if (topk_weights->shape != ids->shape) {
    return reader.refuse(Code::kBadFile, fmt::format("{} must have the shape of {}, {}, got {}", topk_weights->name,
                                                     ids->name, describe(*ids), describe(*topk_weights)));
  }
  if (ids->shape[1] == 0 || ids->shape[1] > UINT32_MAX) {
    return reader.refuse(Code::kBadFile, fmt::format("{} must have columns, got {}", ids->name, describe(*ids)));
  }
  inputs.top_k = static_cast<uint32_t>(ids->shape[1]);
  MEGAMOE_RETURN_IF_ERROR(reader.read(*tokens, inputs.hidden_states));
  MEGAMOE_RETURN_IF_ERROR(reader.read_ids(*ids, inputs.topk_ids));
  MEGAMOE_RETURN_IF_ERROR(reader.read_floats(*topk_weights, inputs.topk_weights));
  return inputs;
}

Result<FloatRows> read_compare(const std::string& path, const std::string& tensor_name) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  const RowReader reader(file.value(), fmt::format("compare.read: {}", printable(path, 1000)));
  const TensorInfo* info = nullptr;
  MEGAMOE_RETURN_IF_ERROR(reader.find(tensor_name, "", info));
  FloatRows rows;
  rows.num_rows = info->shape[0];
  rows.num_cols = info->shape[1];
  MEGAMOE_RETURN_IF_ERROR(reader.read_floats(*info, rows.values));
  return rows;
}

Status write_layer_output(const std::string& path, std::span<const uint16_t> output_bf16, uint64_t num_tokens,
                          uint32_t hidden, const std::map<std::string, std::string>& metadata) {
  const std::array<TensorToWrite, 1> tensors = {
      TensorToWrite{"output", FileDType::kBFloat16, {num_tokens, hidden}, std::as_bytes(output_bf16)}};
  return write_safetensors(path, tensors, metadata);
}

}  // namespace megamoe::io
