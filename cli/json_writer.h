// Writes the JSON of --json: one value at a time, in order, commas and quotes taken care of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megamoe::cli {

/// Inside an object every value is preceded by key(). The document is one line.
class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);
  JsonWriter& text(std::string_view value);
  JsonWriter& whole(uint64_t value);
  /// Six significant digits. JSON has no infinity: beyond the range of double the largest double is written; NaN is
  /// null.
  JsonWriter& real(double value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  template <class Range>
  JsonWriter& wholes(const Range& values) {
    begin_array();
    for (const auto value : values) whole(value);
    return end_array();
  }

  const std::string& str() const { return text_; }

 private:
  void before_value();
  JsonWriter& raw(std::string_view value);

  std::string text_;
  std::vector<bool> has_values_;
  bool after_key_ = false;
};

}  // namespace megamoe::cli
