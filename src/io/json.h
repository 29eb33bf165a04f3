// JSON as events, with the limits that hostile files need. The JSON library is seen by json.cc alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::io {

inline constexpr uint32_t kMaxJsonDepth = 64;
inline constexpr uint32_t kMaxJsonKeys = 1u << 22;  ///< Of one object; the largest checkpoints have about 2^17 tensors.

/// A number as it stands in the text: an integer only where it was written as one and fits 64 bits.
struct JsonNumber {
  enum class Kind : uint8_t { kUnsigned, kNegative, kReal };
  Kind kind = Kind::kUnsigned;
  uint64_t unsigned_value = 0;  ///< For kUnsigned.
  double real_value = 0;        ///< For every kind, rounded.
  std::string_view text;        ///< For kReal, as written; valid during the call only.
};

/// Receives the document in order. A status that is not ok stops the parse and becomes its result.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual Status begin_object() = 0;
  virtual Status key(std::string& text) = 0;
  virtual Status end_object() = 0;
  virtual Status begin_array() = 0;
  virtual Status end_array() = 0;
  virtual Status string(std::string& text) = 0;
  virtual Status number(const JsonNumber& number) = 0;
  virtual Status boolean(bool value) = 0;
  virtual Status null() = 0;
};

/// Parses one strict JSON document. kBadFile for a syntax error (with its byte), depth above 64, a key twice in one
/// object or too many keys; `where` begins every message.
Status parse_json(std::string_view text, std::string_view where, JsonVisitor& visitor);

/// `text` as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace megamoe::io
