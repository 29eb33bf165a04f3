// Random layers: bell-shaped E4M3 weights as fast as memory takes them, BF16 tokens, and routing of a chosen skew.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cli/layer_data.h"
#include "cli/progress.h"
#include "cli/random_streams.h"
#include "cli/rank_team.h"
#include "cli/router.h"
#include "core/reference/formats.h"

namespace megamoe::cli {
namespace {

double normal_quantile(double probability) {
  double low = -8;
  double high = 8;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// The spread of a code's value; the extremes stay below 448, so no code is NaN or saturated.
constexpr double kCodeSigma = 64;

/// A random byte to a code whose value is normal with spread kCodeSigma.
std::array<uint8_t, 256> make_code_table() {
  std::array<uint8_t, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = reference::e4m3_nearest(kCodeSigma * normal_quantile((static_cast<double>(i) + 0.5) / 256));
  }
  return table;
}

void fill_codes(uint64_t key, const std::array<uint8_t, 256>& table, uint8_t* codes, uint64_t count) {
  for (uint64_t i = 0; i < count; i += 8) {
    const uint64_t bits = mix(key + i * kGolden);
    std::array<uint8_t, 8> chunk{};
    for (size_t byte = 0; byte < 8; ++byte) chunk[byte] = table[bits >> (8 * byte) & 0xff];
    std::memcpy(codes + i, chunk.data(), std::min<uint64_t>(8, count - i));
  }
}

/// Scales that give a dot product over `depth` values of spread 1 a spread of about 1, and differ from block to block.
void fill_scales(uint64_t key, uint32_t depth, float* scales, uint64_t count) {
  const double middle = 1.0 / (kCodeSigma * std::sqrt(static_cast<double>(depth)));
  for (uint64_t i = 0; i < count; ++i) {
    scales[i] = static_cast<float>(middle * (0.75 + 0.5 * unit(mix(key + i * kGolden))));
  }
}

/// Asks for large pages where the memory is large: filling gigabytes is mostly page faults otherwise.
void prefer_large_pages(io::Buffer<uint8_t>& buffer) {
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(buffer.data()) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(buffer.data()) + buffer.size_bytes()) / kPage * kPage;
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

Status fill_experts(uint64_t seed, io::LayerWeights& weights, Progress& progress) {
  const MoeShape& shape = weights.shape();
  const uint64_t experts = weights.num_local_experts();
  const uint64_t codes_w13 = uint64_t{2} * shape.intermediate * shape.hidden;
  const uint64_t codes_w2 = codes_w13 / 2;
  const uint64_t scales_w2 =
      uint64_t{shape.hidden / kScaleGroup} * ((shape.intermediate + kScaleGroup - 1) / kScaleGroup);
  const uint64_t scales_w13 = 2 * scales_w2;
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w13, experts * codes_w13, "random w13"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w2, experts * codes_w2, "random w2"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w13_scale, experts * scales_w13, "random w13 scales"));
  MEGAMOE_RETURN_IF_ERROR(allocate(weights.w2_scale, experts * scales_w2, "random w2 scales"));
  prefer_large_pages(weights.w13);
  prefer_large_pages(weights.w2);
  static const std::array<uint8_t, 256> kTable = make_code_table();
  for (uint64_t local = 0; local < experts; ++local) {
    const uint64_t expert = weights.expert_begin + local;
    fill_codes(stream_key(seed, Stream::kW13, expert), kTable, weights.w13.data() + local * codes_w13, codes_w13);
    fill_codes(stream_key(seed, Stream::kW2, expert), kTable, weights.w2.data() + local * codes_w2, codes_w2);
    fill_scales(stream_key(seed, Stream::kW13Scale, expert), shape.hidden,
                weights.w13_scale.data() + local * scales_w13, scales_w13);
    fill_scales(stream_key(seed, Stream::kW2Scale, expert), shape.intermediate,
                weights.w2_scale.data() + local * scales_w2, scales_w2);
    progress.advance();
  }
  return {};
}

/// Rounds a finite number to BF16, ties to even.
uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Nearly normal with spread 1: the sum of four uniform numbers.
float bell(uint64_t bits) {
  const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  constexpr double kMean = 2 * 65535.0;
  const double spread = 65536.0 / std::sqrt(3.0);
  return static_cast<float>((static_cast<double>(sum) - kMean) / spread);
}

}  // namespace

Result<io::LayerInputs> make_random_inputs(const MoeShape& shape, const std::vector<uint32_t>& tokens_per_rank,
                                           RankRange ranks, const Routing& routing, uint64_t seed) {
  const auto rank0 = tokens_per_rank.begin();
  const uint64_t first_token = std::accumulate(rank0, rank0 + ranks.begin, uint64_t{0});
  io::LayerInputs inputs;
  inputs.num_tokens = std::accumulate(rank0 + ranks.begin, rank0 + ranks.end, uint64_t{0});
  inputs.hidden = shape.hidden;
  inputs.top_k = shape.top_k;
  const uint64_t slots = inputs.num_tokens * shape.top_k;
  MEGAMOE_RETURN_IF_ERROR(allocate(inputs.hidden_states, inputs.num_tokens * shape.hidden, "random hidden_states"));
  MEGAMOE_RETURN_IF_ERROR(allocate(inputs.topk_ids, slots, "random topk_ids"));
  MEGAMOE_RETURN_IF_ERROR(allocate(inputs.topk_weights, slots, "random topk_weights"));
  Router router(shape, static_cast<uint32_t>(tokens_per_rank.size()), routing, seed);
  for (uint64_t local = 0; local < inputs.num_tokens; ++local) {
    const uint64_t token = first_token + local;
    const uint64_t hidden_key = stream_key(seed, Stream::kHidden, token);
    uint16_t* const row = inputs.hidden_states.data() + local * shape.hidden;
    for (uint64_t col = 0; col < shape.hidden; ++col) row[col] = to_bf16(bell(mix(hidden_key + col * kGolden)));
    router.draw(token, inputs.topk_ids.data() + local * shape.top_k);
    const uint64_t weight_key = stream_key(seed, Stream::kTopkWeights, token);
    float* const weights = inputs.topk_weights.data() + local * shape.top_k;
    double sum = 0;
    for (uint64_t slot = 0; slot < shape.top_k; ++slot) {
      weights[slot] = static_cast<float>(0.1 + unit(mix(weight_key + slot * kGolden)));
      sum += weights[slot];
    }
    for (uint64_t slot = 0; slot < shape.top_k; ++slot) weights[slot] = static_cast<float>(weights[slot] / sum);
  }
  return inputs;
}

Result<LayerData> make_random_layer(const api::ModelPreset& model, const Execution& execution,
                                    const RandomChoice& random, RankRange ranks) {
  const uint32_t num_ranks = execution.num_ranks;
  LayerData data;
  data.title = fmt::format("model {}, random weights and tokens, seed {}", model.name, random.seed);
  data.shape = model.shape;
  data.clamp = model.clamp;
  data.ranks = ranks;
  data.tokens_per_rank = random.tokens;
  data.tokens_per_rank.resize(num_ranks, random.tokens.front());
  const LayerConfig layer = layer_config(execution, data.shape, data.clamp, data.most_tokens());
  if (auto plan = MoeLayer::plan(layer, num_ranks); !plan.ok()) return plan.status();

  auto inputs = make_random_inputs(data.shape, data.tokens_per_rank, ranks, random.routing, random.seed);
  if (!inputs.ok()) return inputs.status();
  data.inputs = std::move(inputs).value();
  const uint32_t experts_per_rank = data.shape.num_experts / num_ranks;
  data.weights.resize(ranks.count());
  Progress progress("generating experts", uint64_t{experts_per_rank} * ranks.count());
  MEGAMOE_RETURN_IF_ERROR(for_each_rank(ranks.count(), [&](uint32_t held) {
    const uint32_t rank = ranks.begin + held;
    io::LayerWeights& weights = data.weights[held];
    weights.config.shape = data.shape;
    weights.config.swiglu_limit = data.clamp;
    weights.config.quantization = io::Quantization::kFp8Blocks;
    weights.expert_begin = rank * experts_per_rank;
    weights.expert_end = weights.expert_begin + experts_per_rank;
    return fill_experts(random.seed, weights, progress);
  }));
  return data;
}

Result<LayerData> load_layer(const RunOptions& options, RankRange ranks) {
  return options.layer.model ? make_random_layer(*options.layer.model, options.execution, options.random, ranks)
                             : load_checkpoint_layer(options, ranks);
}

}  // namespace megamoe::cli
