// Strict readers on top of std::from_chars, which knows neither locale nor leading blanks.
#include "cli/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>

#include "io/text.h"

namespace megamoe::cli {
namespace {

Status whole_error(std::string_view text, const WholeRange& range) {
  return {Code::kInvalidArgument,
          fmt::format("{}: {} must be between {} and {}, got {}; give a whole number in that range", range.where,
                      range.noun, range.min, range.max, text.empty() ? "nothing" : io::printable(text, 40))};
}

}  // namespace

Result<uint64_t> parse_whole(std::string_view text, const WholeRange& range) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, failure] = std::from_chars(text.data(), end, value);
  if (text.empty() || failure != std::errc() || stopped != end || value < range.min || value > range.max) {
    return whole_error(text, range);
  }
  return value;
}

Result<std::vector<uint32_t>> parse_wholes(std::string_view text, const WholeRange& range, size_t max_count) {
  std::vector<uint32_t> values;
  while (true) {
    const size_t comma = text.find(',');
    auto value = parse_whole(text.substr(0, comma), range);
    if (!value.ok()) return value.status();
    values.push_back(static_cast<uint32_t>(value.value()));
    if (values.size() > max_count) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("{}: there must be at most {} numbers, got more; shorten the list", range.where, max_count));
    }
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

Result<double> parse_real(std::string_view text, std::string_view where, std::string_view noun, double min,
                          double max) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, failure] = std::from_chars(text.data(), end, value);
  if (text.empty() || failure != std::errc() || stopped != end || !(value >= min && value <= max)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: {} must be a number between {} and {}, got {}; give such a number", where, noun, min,
                              max, text.empty() ? "nothing" : io::printable(text, 40)));
  }
  return value;
}

}  // namespace megamoe::cli
