// GEN and TAG data, as documented in the header.
#include "support/data.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "core/scales.h"

namespace megamoe::test {
namespace {

constexpr uint8_t kE4m3One = 0x38;
constexpr uint32_t kNumTags = 126;

// Quantises one matrix [rows][columns] block by block; `value(row, column)`.
template <class Value>
void quantize_matrix(uint32_t rows, uint32_t columns, Value&& value, uint8_t* codes, float* scales) {
  const uint32_t k_blocks = core::num_scale_groups(columns);
  std::vector<double> block(kScaleGroup * kScaleGroup);
  for (uint32_t row_begin = 0; row_begin < rows; row_begin += kScaleGroup) {
    const uint32_t row_end = std::min(rows, row_begin + kScaleGroup);
    for (uint32_t k_begin = 0; k_begin < columns; k_begin += kScaleGroup) {
      const uint32_t k_end = std::min(columns, k_begin + kScaleGroup);
      double amax = 0.0;
      size_t count = 0;
      for (uint32_t row = row_begin; row < row_end; ++row) {
        for (uint32_t k = k_begin; k < k_end; ++k) {
          block[count] = value(row, k);
          amax = std::max(amax, std::fabs(block[count]));
          ++count;
        }
      }
      const float scale = amax == 0.0 ? 1.0f : static_cast<float>(amax / core::kE4m3Max);
      scales[row_begin / kScaleGroup * k_blocks + k_begin / kScaleGroup] = scale;
      count = 0;
      for (uint32_t row = row_begin; row < row_end; ++row) {
        for (uint32_t k = k_begin; k < k_end; ++k) {
          codes[uint64_t{row} * columns + k] = core::e4m3_encode(static_cast<float>(block[count++] / scale));
        }
      }
    }
  }
}

}  // namespace

uint64_t splitmix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

double gen_value(uint64_t seed, uint64_t i) {
  const uint64_t top = splitmix64((seed << 32) + i) >> 40;
  return 2.0 * static_cast<double>(top) / 16777216.0 - 1.0;
}

uint64_t TestWeights::w13_scales_per_expert() const {
  return core::W13ScaleLayout::of(shape.hidden, shape.intermediate).elements_per_expert();
}

uint64_t TestWeights::w2_scales_per_expert() const {
  return core::W2ScaleLayout::of(shape.hidden, shape.intermediate).elements_per_expert();
}

reference::Layer TestWeights::layer(std::optional<float> clamp) const {
  reference::Layer layer{shape, clamp, {}};
  for (uint64_t e = 0; e < shape.num_experts; ++e) {
    const float* gate_scale = w13_scale.data() + e * w13_scales_per_expert();
    layer.experts.push_back({.w13 = w13.data() + e * w13_elements_per_expert(),
                             .gate_scale = gate_scale,
                             .up_scale = gate_scale + w13_scales_per_expert() / 2,
                             .w2 = w2.data() + e * w2_elements_per_expert(),
                             .w2_scale = w2_scale.data() + e * w2_scales_per_expert()});
  }
  if (shared != nullptr) layer.shared_experts = shared->layer().experts;
  layer.routed_scaling = routed_scaling;
  return layer;
}

TestWeights zero_weights(const MoeShape& shape) {
  TestWeights weights{shape, {}, {}, {}, {}};
  weights.w13.resize(shape.num_experts * weights.w13_elements_per_expert());
  weights.w13_scale.assign(shape.num_experts * weights.w13_scales_per_expert(), 1.0f);
  weights.w2.resize(shape.num_experts * weights.w2_elements_per_expert());
  weights.w2_scale.assign(shape.num_experts * weights.w2_scales_per_expert(), 1.0f);
  return weights;
}

TestWeights quantize_weights(const MoeShape& shape, const WeightValue& w13, const WeightValue& w2) {
  TestWeights weights = zero_weights(shape);
  const uint32_t hidden = shape.hidden;
  const uint32_t intermediate = shape.intermediate;
  for (uint32_t e = 0; e < shape.num_experts; ++e) {
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t first_row = half * intermediate;
      quantize_matrix(
          intermediate, hidden, [&](uint32_t row, uint32_t column) { return w13(e, first_row + row, column); },
          weights.w13.data() + e * weights.w13_elements_per_expert() + uint64_t{first_row} * hidden,
          weights.w13_scale.data() + e * weights.w13_scales_per_expert() + half * weights.w13_scales_per_expert() / 2);
    }
    quantize_matrix(
        hidden, intermediate, [&](uint32_t row, uint32_t column) { return w2(e, row, column); },
        weights.w2.data() + e * weights.w2_elements_per_expert(),
        weights.w2_scale.data() + e * weights.w2_scales_per_expert());
  }
  return weights;
}

TestWeights gen_weights(const MoeShape& shape, uint64_t seed) {
  const uint64_t hidden = shape.hidden;
  const uint64_t intermediate = shape.intermediate;
  const double w13_factor = 2.0 / std::sqrt(static_cast<double>(hidden));
  const double w2_factor = 2.0 / std::sqrt(static_cast<double>(intermediate));
  return quantize_weights(
      shape,
      [=](uint64_t e, uint64_t row, uint64_t column) {
        return gen_value(seed, (e * 2 * intermediate + row) * hidden + column) * w13_factor;
      },
      [=](uint64_t e, uint64_t row, uint64_t column) {
        return gen_value(seed + 1, (e * hidden + row) * intermediate + column) * w2_factor;
      });
}

TestWeights tag_weights(const MoeShape& shape) {
  TestWeights weights = zero_weights(shape);
  for (uint64_t e = 0; e < shape.num_experts; ++e) {
    uint8_t* w13 = weights.w13.data() + e * weights.w13_elements_per_expert();
    for (uint64_t row = 0; row < shape.intermediate; ++row) {
      w13[row * shape.hidden] = kE4m3One;
      w13[(shape.intermediate + row) * shape.hidden + 1] = kE4m3One;
    }
    uint8_t* w2 = weights.w2.data() + e * weights.w2_elements_per_expert();
    for (uint64_t column = e; column < shape.hidden; column += shape.num_experts) {
      w2[column * shape.intermediate] = kE4m3One;
    }
  }
  return weights;
}

reference::Input TestTokens::input() const {
  return {.num_tokens = num_tokens,
          .hidden_bf16 = hidden.data(),
          .hidden_codes = nullptr,
          .hidden_scales = nullptr,
          .topk_ids = topk_ids.data(),
          .topk_weights = topk_weights.data(),
          .options = {.shared_weights = shared_weights.empty() ? nullptr : shared_weights.data()}};
}

QuantizedTokens quantize_tokens(const MoeShape& shape, const TestTokens& tokens) {
  QuantizedTokens quantized;
  const reference::Layer layer{shape, std::nullopt, {}};
  for (uint64_t t = 0; t < tokens.num_tokens; ++t) {
    const reference::QuantizedRow row = reference::input_row(layer, tokens.input(), t);
    quantized.codes.insert(quantized.codes.end(), row.codes.begin(), row.codes.end());
    quantized.scales.insert(quantized.scales.end(), row.scales.begin(), row.scales.end());
  }
  return quantized;
}

TestTokens gen_tokens(const MoeShape& shape, uint64_t num_tokens, uint64_t seed) {
  TestTokens tokens;
  tokens.num_tokens = num_tokens;
  tokens.hidden.resize(num_tokens * shape.hidden);
  for (uint64_t i = 0; i < tokens.hidden.size(); ++i) {
    tokens.hidden[i] = core::bf16_encode(static_cast<float>(gen_value(seed, i)));
  }
  uint64_t draw_idx = uint64_t{1} << 31;  // away from the indices of `hidden` under the same seed
  std::vector<int64_t> experts(shape.num_experts);
  for (uint64_t t = 0; t < num_tokens; ++t) {
    std::iota(experts.begin(), experts.end(), 0);
    std::vector<double> weights(shape.top_k);
    double sum = 0.0;
    for (uint32_t slot = 0; slot < shape.top_k; ++slot) {
      const uint64_t left = shape.num_experts - slot;
      std::swap(experts[slot], experts[slot + splitmix64((seed << 32) + draw_idx++) % left]);
      weights[slot] = 1.1 + gen_value(seed, draw_idx++);
      sum += weights[slot];
    }
    for (uint32_t slot = 0; slot < shape.top_k; ++slot) {
      tokens.topk_ids.push_back(experts[slot]);
      tokens.topk_weights.push_back(static_cast<float>(weights[slot] / sum));
    }
  }
  return tokens;
}

TestTokens tag_tokens(const MoeShape& shape, uint64_t num_tokens, uint64_t first_tag) {
  TestTokens tokens;
  tokens.num_tokens = num_tokens;
  tokens.hidden.resize(num_tokens * shape.hidden);
  for (uint64_t t = 0; t < num_tokens; ++t) {
    const auto code = static_cast<uint8_t>(1 + (first_tag + t) % kNumTags);
    tokens.tags.push_back(code);
    tokens.hidden[t * shape.hidden] = core::bf16_encode(1.0f);
    tokens.hidden[t * shape.hidden + 1] = core::bf16_encode(core::e4m3_decode(code) / core::kE4m3Max);
  }
  tokens.topk_ids.assign(num_tokens * shape.top_k, -1);
  tokens.topk_weights.assign(num_tokens * shape.top_k, 1.0f / static_cast<float>(shape.top_k));
  return tokens;
}

double tag_expected(const MoeShape& shape, const TestTokens& tokens, uint64_t token, uint32_t column) {
  const double a = double{core::e4m3_decode(static_cast<uint8_t>(tokens.tags[token]))} / 448.0;
  double weight = 0.0;
  for (uint32_t slot = 0; slot < shape.top_k; ++slot) {
    const uint64_t slot_idx = token * shape.top_k + slot;
    if (tokens.topk_ids[slot_idx] == column % shape.num_experts) weight += tokens.topk_weights[slot_idx];
  }
  const double silu_of_one = 1.0 / (1.0 + std::exp(-1.0));
  return silu_of_one * a * weight;
}

double bf16_ulp(double value) {
  if (value == 0.0) return std::ldexp(1.0, -133);
  return std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
}

}  // namespace megamoe::test
