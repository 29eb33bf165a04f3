// JSON as events: the one source file that includes the JSON library.
#include "io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/text.h"

namespace megamoe::io {
namespace {

/// Adds depth and duplicate-key checks to the library's events and passes them on.
class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(std::string_view where, JsonVisitor& visitor) : where_(where), visitor_(visitor) {}

  const Status& status() const { return status_; }

  bool null() override { return keep(visitor_.null()); }
  bool boolean(bool value) override { return keep(visitor_.boolean(value)); }

  bool number_integer(number_integer_t value) override {
    JsonNumber number;
    number.kind = JsonNumber::Kind::kNegative;
    number.real_value = static_cast<double>(value);
    return keep(visitor_.number(number));
  }

  bool number_unsigned(number_unsigned_t value) override {
    JsonNumber number;
    number.unsigned_value = value;
    number.real_value = static_cast<double>(value);
    return keep(visitor_.number(number));
  }

  bool number_float(number_float_t value, const string_t& text) override {
    JsonNumber number;
    number.kind = JsonNumber::Kind::kReal;
    number.real_value = value;
    number.text = text;
    return keep(visitor_.number(number));
  }

  bool string(string_t& text) override { return keep(visitor_.string(text)); }
  bool binary(binary_t& /*bytes*/) override { return keep(Status(Code::kInternal, "json: binary in a text")); }

  bool start_object(size_t /*num_elements*/) override {
    if (!enter()) return false;
    keys_.emplace_back();
    return keep(visitor_.begin_object());
  }

  bool key(string_t& text) override {
    if (keys_.back().size() == kMaxJsonKeys) {
      return keep(Status(Code::kBadFile,
                         fmt::format("{}: an object must have at most {} keys, got more", where_, kMaxJsonKeys)));
    }
    keys_.back().push_back(text);
    return keep(visitor_.key(text));
  }

  bool end_object() override {
    // Sorting, not hashing: no choice of keys makes it slow.
    std::vector<std::string>& keys = keys_.back();
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      return keep(
          Status(Code::kBadFile, fmt::format("{}: a key must occur once in an object, \"{}\" occurs twice; the file is "
                                             "ambiguous, write it again",
                                             where_, printable(*twice))));
    }
    keys_.pop_back();
    --depth_;
    return keep(visitor_.end_object());
  }

  bool start_array(size_t /*num_elements*/) override { return enter() && keep(visitor_.begin_array()); }

  bool end_array() override {
    --depth_;
    return keep(visitor_.end_array());
  }

  bool parse_error(size_t position, const std::string& /*last_token*/,
                   const nlohmann::json::exception& error) override {
    const std::string_view text = error.what();
    const size_t prefix_end = text.find("] ");
    return keep(
        Status(Code::kBadFile,
               fmt::format("{}: must be valid JSON, at byte {}: {}", where_, position,
                           printable(prefix_end == std::string_view::npos ? text : text.substr(prefix_end + 2)))));
  }

 private:
  bool enter() {
    ++depth_;
    if (depth_ <= kMaxJsonDepth) return true;
    return keep(
        Status(Code::kBadFile, fmt::format("{}: JSON must be nested at most {} deep, got more; no such file is valid",
                                           where_, kMaxJsonDepth)));
  }

  bool keep(Status status) {
    status_ = std::move(status);
    return status_.ok();
  }

  std::string_view where_;
  JsonVisitor& visitor_;
  Status status_;
  uint32_t depth_ = 0;
  std::vector<std::vector<std::string>> keys_;  ///< Of every open object.
};

}  // namespace

Status parse_json(std::string_view text, std::string_view where, JsonVisitor& visitor) {
  Adapter adapter(where, visitor);
  try {
    const bool complete = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter,
                                                    nlohmann::json::input_format_t::json);
    if (!complete && adapter.status().ok()) {
      return {Code::kInternal, fmt::format("{}: the JSON parser stopped without a reason", where)};
    }
  } catch (const std::bad_alloc&) {
    return {Code::kOutOfMemory,
            fmt::format("{}: memory to parse {} bytes of JSON was not available", where, text.size())};
  } catch (const std::exception& error) {
    return {Code::kInternal, fmt::format("{}: the JSON parser failed: {}", where, printable(error.what()))};
  }
  return adapter.status();
}

std::string json_quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace megamoe::io
