// What the system says about an errno value, safe in any thread.
#pragma once

#include <cstring>
#include <string>

namespace megamoe::comm {

inline std::string error_text(int error_number) {
  char buffer[256];
  return strerror_r(error_number, buffer, sizeof(buffer));
}

}  // namespace megamoe::comm
