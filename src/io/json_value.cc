// A small JSON document in memory, for files that are read by key.
#include "io/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/json.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

class TreeBuilder final : public JsonVisitor {
 public:
  explicit TreeBuilder(JsonValue& root) : root_(root) {}

  Status begin_object() override { return open(JsonValue::Kind::kObject); }
  Status begin_array() override { return open(JsonValue::Kind::kArray); }
  Status end_object() override { return close(); }
  Status end_array() override { return close(); }

  Status key(std::string& text) override {
    open_.back()->keys.push_back(std::move(text));
    return {};
  }

  Status string(std::string& text) override {
    JsonValue& value = add(JsonValue::Kind::kString);
    value.text = std::move(text);
    return {};
  }

  Status number(const JsonNumber& number) override {
    switch (number.kind) {
      case JsonNumber::Kind::kUnsigned:
        add(JsonValue::Kind::kUnsigned).unsigned_value = number.unsigned_value;
        break;
      case JsonNumber::Kind::kNegative:
        add(JsonValue::Kind::kNegative);
        break;
      case JsonNumber::Kind::kReal:
        add(JsonValue::Kind::kReal).text = number.text;
        break;
    }
    last_->real_value = number.real_value;
    return {};
  }

  Status boolean(bool value) override {
    add(JsonValue::Kind::kBoolean).boolean = value;
    return {};
  }

  Status null() override {
    add(JsonValue::Kind::kNull);
    return {};
  }

 private:
  JsonValue& add(JsonValue::Kind kind) {
    // An open value is the last item of its parent, and the parent gets no item before it is closed: pointers stay
    // valid.
    last_ = open_.empty() ? &root_ : &open_.back()->items.emplace_back();
    last_->kind = kind;
    return *last_;
  }

  Status open(JsonValue::Kind kind) {
    open_.push_back(&add(kind));
    return {};
  }

  Status close() {
    open_.pop_back();
    return {};
  }

  JsonValue& root_;
  JsonValue* last_ = nullptr;
  std::vector<JsonValue*> open_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? nullptr : &items[static_cast<size_t>(found - keys.begin())];
}

std::string describe(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBoolean:
      return value.boolean ? "true" : "false";
    case JsonValue::Kind::kUnsigned:
      return std::to_string(value.unsigned_value);
    case JsonValue::Kind::kNegative:
      return fmt::format("{:.0f}", value.real_value);
    case JsonValue::Kind::kReal:
      return printable(value.text, 40);
    case JsonValue::Kind::kString:
      return fmt::format("\"{}\"", printable(value.text));
    case JsonValue::Kind::kArray: {
      constexpr size_t kMaxShown = 8;
      std::string shown;
      for (size_t idx = 0; idx < value.items.size() && idx < kMaxShown; ++idx) {
        const JsonValue& item = value.items[idx];
        const bool nested = item.kind == JsonValue::Kind::kArray || item.kind == JsonValue::Kind::kObject;
        shown += (idx > 0 ? ", " : "") + (nested ? std::string("...") : describe(item));
      }
      return fmt::format("[{}{}]", shown, value.items.size() > kMaxShown ? ", ..." : "");
    }
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "nothing";
}

Result<JsonValue> parse_json_value(std::string_view text, std::string_view where) {
  JsonValue root;
  TreeBuilder builder(root);
  MEGAMOE_RETURN_IF_ERROR(parse_json(text, where, builder));
  return root;
}

}  // namespace megamoe::io
