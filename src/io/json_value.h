// A small JSON document in memory, for files that are read by key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/status.h"

namespace megamoe::io {

struct JsonValue {
  enum class Kind : uint8_t { kNull, kBoolean, kUnsigned, kNegative, kReal, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  uint64_t unsigned_value = 0;    ///< For kUnsigned.
  double real_value = 0;          ///< For every number, rounded.
  std::string text;               ///< Of a string, or of a real number as written.
  std::vector<JsonValue> items;   ///< Of an array, or the values of an object.
  std::vector<std::string> keys;  ///< Of an object, in the order of `items`.

  bool is_number() const { return kind == Kind::kUnsigned || kind == Kind::kNegative || kind == Kind::kReal; }
  /// The value under `key` of an object; null pointer where there is none or this is no object.
  const JsonValue* find(std::string_view key) const;
};

/// For messages: "128", "\"abc\"", "an array", ...
std::string describe(const JsonValue& value);

/// Parses a document with the limits of parse_json().
Result<JsonValue> parse_json_value(std::string_view text, std::string_view where);

}  // namespace megamoe::io
