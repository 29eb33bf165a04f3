// Where the checkpoints of tests/fixtures lie: in the source tree, or where MEGAMOE_FIXTURES says.
#pragma once

#include <cstdlib>
#include <string>

namespace megamoe::test {

inline std::string fixture_folder(const std::string& name) {
  const char* carried = std::getenv("MEGAMOE_FIXTURES");
  return (carried != nullptr ? std::string(carried) : std::string(MEGAMOE_SOURCE_DIR "/tests/fixtures")) + "/" + name;
}

}  // namespace megamoe::test
