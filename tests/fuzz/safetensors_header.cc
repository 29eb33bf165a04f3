// Fuzz target: the header of a safetensors file.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/check.h"
#include "fuzz/targets.h"
#include "io/safetensors.h"

namespace megamoe::fuzz {
namespace {

void parse(std::span<const std::byte> file_start, uint64_t file_bytes) {
  const Result<io::SafetensorsHeader> header = io::parse_safetensors_header(file_start, file_bytes, "fuzz");
  if (!header.ok()) {
    MEGAMOE_FUZZ_CHECK(header.status().code() == Code::kBadFile);
    MEGAMOE_FUZZ_CHECK(header.status().message().starts_with("fuzz: "));
    MEGAMOE_FUZZ_CHECK(header.status().message().size() < 2000);
    return;
  }
  uint64_t num_bytes = 0;
  for (const io::TensorInfo& info : header->tensors) {
    MEGAMOE_FUZZ_CHECK(info.file_offset >= header->data_offset);
    MEGAMOE_FUZZ_CHECK(info.num_bytes <= file_bytes);
    MEGAMOE_FUZZ_CHECK(info.file_offset <= file_bytes - info.num_bytes);
    MEGAMOE_FUZZ_CHECK(header->find(info.name) == &info);
    num_bytes += info.num_bytes;
#if defined(MEGAMOE_FUZZ_PLANTED_BUG)
    // Believes that names are short: what the fuzzer must find to show that it works.
    std::vector<char> copy(24);
    std::memcpy(copy.data(), info.name.c_str(), info.name.size());
#endif
  }
  MEGAMOE_FUZZ_CHECK(header->data_offset + num_bytes == file_bytes);
}

}  // namespace

void safetensors_header(std::span<const uint8_t> input) {
  parse(std::as_bytes(input), input.size());
  if (input.empty()) return;
  // A fuzzer seldom gets the length field right: the first byte is the size of the data, the rest the header.
  const uint64_t data_bytes = input[0];
  const uint64_t header_bytes = input.size() - 1;
  std::vector<std::byte> file(8 + header_bytes);
  for (size_t idx = 0; idx < 8; ++idx) file[idx] = static_cast<std::byte>(header_bytes >> (8 * idx) & 0xff);
  if (header_bytes > 0) std::memcpy(file.data() + 8, input.data() + 1, header_bytes);
  parse(file, file.size() + data_bytes);
}

}  // namespace megamoe::fuzz
