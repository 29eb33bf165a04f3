// The punctuation of JSON.
#include "cli/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "io/json.h"

namespace megamoe::cli {

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_values_.empty()) return;
  if (has_values_.back()) text_ += ", ";
  has_values_.back() = true;
}

JsonWriter& JsonWriter::raw(std::string_view value) {
  before_value();
  text_ += value;
  return *this;
}

JsonWriter& JsonWriter::begin_object() {
  raw("{");
  has_values_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  text_ += '}';
  has_values_.pop_back();
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  raw("[");
  has_values_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  text_ += ']';
  has_values_.pop_back();
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  before_value();
  text_ += io::json_quoted(name);
  text_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) { return raw(io::json_quoted(value)); }
JsonWriter& JsonWriter::whole(uint64_t value) { return raw(fmt::format("{}", value)); }
JsonWriter& JsonWriter::boolean(bool value) { return raw(value ? "true" : "false"); }
JsonWriter& JsonWriter::null() { return raw("null"); }

JsonWriter& JsonWriter::real(double value) {
  if (std::isnan(value)) return null();
  constexpr double kLargest = std::numeric_limits<double>::max();
  if (std::isinf(value)) return raw(fmt::format("{}", std::copysign(kLargest, value)));
  return raw(fmt::format("{:.6g}", value));
}

}  // namespace megamoe::cli
