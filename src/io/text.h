// Text from files that is safe to show: no control bytes, no invalid UTF-8, bounded length.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace megamoe::io {

/// `text` with control characters and invalid UTF-8 as \xNN and the end cut after about `max_bytes`.
std::string printable(std::string_view text, size_t max_bytes = 200);

/// "a, b, c and 5 more", each printable.
std::string join_names(const std::vector<std::string>& names, size_t max_names = 8);

}  // namespace megamoe::io
