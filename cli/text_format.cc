// Units chosen so that three or four digits say it.
#include "cli/text_format.h"

#include <fmt/format.h>

#include <array>

namespace megamoe::cli {

std::string duration_text(uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (value < 1e6) return fmt::format("{:.1f} us", value / 1e3);
  if (value < 1e9) return fmt::format("{:.2f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

std::string bytes_text(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    unit += 1;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string counted(uint64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void write_shape(JsonWriter& json, const MoeShape& shape) {
  json.begin_object();
  json.key("hidden").whole(shape.hidden);
  json.key("intermediate").whole(shape.intermediate);
  json.key("num_experts").whole(shape.num_experts);
  json.key("top_k").whole(shape.top_k);
  json.end_object();
}

}  // namespace megamoe::cli
