// Fuzz target: config.json.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/check.h"
#include "fuzz/targets.h"
#include "io/model_config.h"

namespace megamoe::fuzz {
namespace {

struct Member {
  std::string_view key;
  std::string_view value;
};

/// A valid file; each line of the fuzzer's input that is not empty replaces one value.
constexpr std::array<Member, 16> kMembers = {
    {{"model_type", "\"deepseek_v3\""},
     {"hidden_size", "256"},
     {"moe_intermediate_size", "128"},
     {"n_routed_experts", "16"},
     {"num_experts_per_tok", "4"},
     {"num_hidden_layers", "2"},
     {"n_shared_experts", "1"},
     {"routed_scaling_factor", "2.5"},
     {"swiglu_limit", "10"},
     {"hidden_act", "\"silu\""},
     {"quantization_config", R"({"quant_method":"fp8","weight_block_size":[128,128]})"},
     {"n_group", "4"},
     {"topk_group", "2"},
     {"norm_topk_prob", "true"},
     {"scoring_func", "\"sigmoid\""},
     {"shared_expert_intermediate_size", "0"}}};

std::string with_lines(std::string_view lines) {
  std::string text = "{";
  for (const Member& member : kMembers) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (text.size() > 1) text += ',';
    text.append("\"").append(member.key).append("\":").append(line.empty() ? member.value : line);
  }
  return text + '}';
}

void parse(std::string_view text) {
  const Result<io::ModelConfig> config = io::parse_model_config(text, "fuzz");
  if (!config.ok()) {
    const Code code = config.status().code();
    MEGAMOE_FUZZ_CHECK(code == Code::kBadFile || code == Code::kNotSupported);
    MEGAMOE_FUZZ_CHECK(config.status().message().starts_with("fuzz: "));
    MEGAMOE_FUZZ_CHECK(config.status().message().size() < 4000);
    return;
  }
  const Result<routing::RouterConfig> router = io::router_config(config.value(), "fuzz");
  if (router.ok()) {
    MEGAMOE_FUZZ_CHECK(routing::validate(router.value()).ok());
  } else {
    const Code code = router.status().code();
    MEGAMOE_FUZZ_CHECK(code == Code::kBadFile || code == Code::kNotSupported);
    MEGAMOE_FUZZ_CHECK(router.status().message().starts_with("fuzz: "));
    MEGAMOE_FUZZ_CHECK(router.status().message().size() < 4000);
  }
  const MoeShape& shape = config->shape;
  MEGAMOE_FUZZ_CHECK(shape.hidden > 0 && shape.hidden % kScaleGroup == 0);
  MEGAMOE_FUZZ_CHECK(shape.intermediate > 0 && shape.intermediate % 64 == 0);
  MEGAMOE_FUZZ_CHECK(shape.num_experts > 0 && shape.num_experts <= kMaxExperts);
  MEGAMOE_FUZZ_CHECK(shape.top_k > 0 && shape.top_k <= kMaxTopK && shape.top_k <= shape.num_experts);
  MEGAMOE_FUZZ_CHECK(!config->swiglu_limit || (*config->swiglu_limit > 0 && std::isfinite(*config->swiglu_limit)));
#if defined(MEGAMOE_FUZZ_PLANTED_BUG)
  // Believes that the type is a short word: what the fuzzer must find to show that it works.
  std::vector<char> copy(24);
  std::memcpy(copy.data(), config->model_type.c_str(), config->model_type.size());
#endif
}

}  // namespace

void model_config(std::span<const uint8_t> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  parse(text);
  parse(with_lines(text));
}

}  // namespace megamoe::fuzz
