// Text from files that is safe to show: no control bytes, no invalid UTF-8, bounded length.
#include "io/text.h"

#include <fmt/format.h>

#include <cstdint>

namespace megamoe::io {
namespace {

uint8_t byte_at(std::string_view text, size_t idx) { return static_cast<uint8_t>(text[idx]); }

bool is_continuation(std::string_view text, size_t idx) {
  return idx < text.size() && (byte_at(text, idx) & 0xc0) == 0x80;
}

/// Bytes of the valid, visible UTF-8 character at `idx`; 0 where there is none.
size_t visible_character_bytes(std::string_view text, size_t idx) {
  const uint8_t lead = byte_at(text, idx);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const bool second = is_continuation(text, idx + 1);
  const bool third = second && is_continuation(text, idx + 2);
  const bool fourth = third && is_continuation(text, idx + 3);
  if (lead >= 0xc2 && lead <= 0xdf && second) {
    const bool control = lead == 0xc2 && byte_at(text, idx + 1) < 0xa0;
    return control ? 0 : 2;
  }
  if (lead >= 0xe0 && lead <= 0xef && third) {
    const uint8_t next = byte_at(text, idx + 1);
    const bool overlong = lead == 0xe0 && next < 0xa0;
    const bool surrogate = lead == 0xed && next >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4 && fourth) {
    const uint8_t next = byte_at(text, idx + 1);
    const bool overlong = lead == 0xf0 && next < 0x90;
    const bool too_large = lead == 0xf4 && next >= 0x90;
    return overlong || too_large ? 0 : 4;
  }
  return 0;
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string shown;
  size_t idx = 0;
  while (idx < text.size() && shown.size() < max_bytes) {
    const size_t num_bytes = visible_character_bytes(text, idx);
    if (num_bytes == 0) {
      shown += fmt::format("\\x{:02x}", byte_at(text, idx));
      ++idx;
    } else {
      shown.append(text.substr(idx, num_bytes));
      idx += num_bytes;
    }
  }
  if (idx < text.size()) shown += fmt::format("... ({} bytes in all)", text.size());
  return shown;
}

std::string join_names(const std::vector<std::string>& names, size_t max_names) {
  std::string joined;
  for (size_t idx = 0; idx < names.size() && idx < max_names; ++idx) {
    if (idx > 0) joined += ", ";
    joined += printable(names[idx]);
  }
  if (names.size() > max_names) joined += fmt::format(" and {} more", names.size() - max_names);
  return joined;
}

}  // namespace megamoe::io
