// Fuzz target: model.safetensors.index.json.
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/check.h"
#include "fuzz/targets.h"
#include "io/checkpoint.h"

namespace megamoe::fuzz {

void checkpoint_index(std::span<const uint8_t> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const Result<io::CheckpointIndex> index = io::parse_checkpoint_index(text, "fuzz");
  if (!index.ok()) {
    MEGAMOE_FUZZ_CHECK(index.status().code() == Code::kBadFile);
    MEGAMOE_FUZZ_CHECK(index.status().message().starts_with("fuzz: "));
    MEGAMOE_FUZZ_CHECK(index.status().message().size() < 2000);
    return;
  }
  MEGAMOE_FUZZ_CHECK(!index->entries.empty());
  for (size_t idx = 0; idx < index->shards.size(); ++idx) {
    const std::string& shard = index->shards[idx];
    MEGAMOE_FUZZ_CHECK(!shard.empty() && shard != "." && shard != "..");
    MEGAMOE_FUZZ_CHECK(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos);
    MEGAMOE_FUZZ_CHECK(idx == 0 || index->shards[idx - 1] < shard);
#if defined(MEGAMOE_FUZZ_PLANTED_BUG)
    // Believes that shard names are short: what the fuzzer must find to show that it works.
    std::vector<char> copy(24);
    std::memcpy(copy.data(), shard.c_str(), shard.size());
#endif
  }
  for (size_t idx = 0; idx < index->entries.size(); ++idx) {
    MEGAMOE_FUZZ_CHECK(index->entries[idx].shard_idx < index->shards.size());
    MEGAMOE_FUZZ_CHECK(idx == 0 || index->entries[idx - 1].tensor_name < index->entries[idx].tensor_name);
  }
}

}  // namespace megamoe::fuzz
