// Reads expected_formats.csv, what ml_dtypes says about the number formats (written by make_tables.py).
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace megamoe::test {

struct ExpectedBits {
  uint32_t input = 0;
  uint32_t output = 0;
};

/// The lines of one kind, "e4m3_encode" for example; empty where the file or the kind is missing.
inline std::vector<ExpectedBits> expected_formats(const std::string& kind) {
  std::ifstream file(std::string(MEGAMOE_SOURCE_DIR) + "/tests/unit/reference/expected_formats.csv");
  std::vector<ExpectedBits> lines;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string line_kind;
    std::string input;
    std::string output;
    std::getline(fields, line_kind, ',');
    std::getline(fields, input, ',');
    std::getline(fields, output);
    if (line_kind != kind) continue;
    lines.push_back({static_cast<uint32_t>(std::stoul(input, nullptr, 16)),
                     static_cast<uint32_t>(std::stoul(output, nullptr, 16))});
  }
  return lines;
}

}  // namespace megamoe::test
