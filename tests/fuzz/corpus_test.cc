// Replays the kept inputs through the fuzz targets in ordinary builds, so that what a fuzzer once found stays fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/targets.h"

namespace megamoe::fuzz {
namespace {

using Target = void (*)(std::span<const uint8_t>);

/// Every file of the corpus, each of its beginnings, and each with one byte changed.
void replay(const std::string& corpus, Target target) {
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MEGAMOE_SOURCE_DIR "/tests/fuzz/corpus/" + corpus)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::vector<uint8_t> input{std::istreambuf_iterator<char>(stream), {}};
    SCOPED_TRACE(entry.path().string());
    target(input);
    for (size_t size = 0; size < input.size(); ++size) target({input.data(), size});
    for (size_t idx = 0; idx < input.size(); ++idx) {
      std::vector<uint8_t> changed = input;
      changed[idx] ^= 0x11;
      target(changed);
    }
    ++num_files;
  }
  EXPECT_GT(num_files, 3u);
}

TEST(Corpus, SafetensorsHeader) { replay("safetensors_header", safetensors_header); }
TEST(Corpus, CheckpointIndex) { replay("checkpoint_index", checkpoint_index); }
TEST(Corpus, ModelConfig) { replay("model_config", model_config); }
TEST(Corpus, CliNumbers) { replay("cli_numbers", cli_numbers); }

}  // namespace
}  // namespace megamoe::fuzz
