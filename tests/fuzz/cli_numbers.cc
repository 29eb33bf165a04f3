// Fuzz target: numbers as they come from the command line.
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cli/numbers.h"
#include "fuzz/check.h"
#include "fuzz/targets.h"

namespace megamoe::fuzz {
namespace {

constexpr cli::WholeRange kRanks{"fuzz --ranks", "ranks", 1, 72};
constexpr cli::WholeRange kAny{"fuzz --bytes", "bytes", 0, UINT64_MAX};

void check_sentence(const Status& status) {
  MEGAMOE_FUZZ_CHECK(status.code() == Code::kInvalidArgument);
  MEGAMOE_FUZZ_CHECK(status.message().starts_with("fuzz --"));
  MEGAMOE_FUZZ_CHECK(status.message().size() < 1000);
}

/// Whether the text is digits that stand for `value`, written without std::from_chars.
bool spells(std::string_view text, uint64_t value) {
  while (text.size() > 1 && text[0] == '0') text.remove_prefix(1);
  return text == std::to_string(value);
}

}  // namespace

void cli_numbers(std::span<const uint8_t> input) {
  std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  if (text.ends_with('\n')) text.pop_back();  // files of the corpus end in one
  if (const Result<uint64_t> ranks = cli::parse_whole(text, kRanks); ranks.ok()) {
    MEGAMOE_FUZZ_CHECK(ranks.value() >= 1 && ranks.value() <= 72 && spells(text, ranks.value()));
#if defined(MEGAMOE_FUZZ_PLANTED_BUG)
    // Forgets that 72 is allowed: what the fuzzer must find to show that it works.
    std::vector<uint8_t> seen(71);
    seen.data()[ranks.value() - 1] = 1;
#endif
  } else {
    check_sentence(ranks.status());
  }
  if (const Result<uint64_t> any = cli::parse_whole(text, kAny); any.ok()) {
    MEGAMOE_FUZZ_CHECK(spells(text, any.value()));
  } else {
    check_sentence(any.status());
  }
  if (const auto list = cli::parse_wholes(text, kRanks, 8); list.ok()) {
    MEGAMOE_FUZZ_CHECK(!list->empty() && list->size() <= 8);
    for (const uint32_t value : list.value()) MEGAMOE_FUZZ_CHECK(value >= 1 && value <= 72);
  } else {
    check_sentence(list.status());
  }
  if (const Result<double> real = cli::parse_real(text, "fuzz --skew", "skew", 0, 10); real.ok()) {
    MEGAMOE_FUZZ_CHECK(std::isfinite(real.value()) && real.value() >= 0 && real.value() <= 10);
  } else {
    check_sentence(real.status());
  }
}

}  // namespace megamoe::fuzz
