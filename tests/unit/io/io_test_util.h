// What the reader tests share: raw safetensors bytes, small checkpoints to damage, and error expectations.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "megamoe/status.h"
#include "support/temp_dir.h"

namespace megamoe::io {

/// The code, and every word in the message.
inline void expect_error(const Status& status, Code code, const std::vector<std::string>& words) {
  EXPECT_EQ(name(status.code()), name(code)) << status.message();
  for (const std::string& word : words) EXPECT_THAT(status.message(), testing::HasSubstr(word));
}

/// A file of an 8-byte length, the header and the data, as they are given.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
  std::string file;
  for (uint64_t shift = 0; shift < 64; shift += 8) file += static_cast<char>(uint64_t{header.size()} >> shift & 0xff);
  return file.append(header).append(data);
}

/// Tensors that a test may change before they are written. Owns its data.
struct StoredTensor {
  FileDType dtype = FileDType::kUInt8;
  std::vector<uint64_t> shape;
  std::string data;
};
using StoredTensors = std::map<std::string, StoredTensor>;

template <class T>
StoredTensor stored(FileDType dtype, std::vector<uint64_t> shape, const std::vector<T>& values) {
  StoredTensor tensor{dtype, std::move(shape), std::string(values.size() * sizeof(T), '\0')};
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

inline Status write_tensors(const std::string& path, const StoredTensors& tensors) {
  std::vector<TensorToWrite> list;
  for (const auto& [tensor_name, tensor] : tensors) {
    list.push_back({tensor_name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.data))});
  }
  return write_safetensors(path, list, {});
}

}  // namespace megamoe::io
