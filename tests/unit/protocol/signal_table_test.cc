// docs/protocol.md and docs/memory_model.md speak of the same signals as the code.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "protocol/signal.h"

namespace megamoe::protocol {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(SignalTable, IsTheOneInTheDocuments) {
  const std::string document = read(MEGAMOE_SOURCE_DIR "/docs/protocol.md");
  for (uint32_t i = 0; i < kNumSignals; ++i) {
    const SignalInfo& signal = kSignals[i];
    const std::string scope = signal.scope == Scope::kRank ? "rank" : "system";
    const std::string row = std::string("| `") + signal.name + "` | " + scope + " | " + signal.released_by + " | " +
                            signal.acquired_by + " | " + signal.reset + " |";
    EXPECT_NE(document.find(row), std::string::npos) << "missing row: " << row;
  }
}

}  // namespace
}  // namespace megamoe::protocol
