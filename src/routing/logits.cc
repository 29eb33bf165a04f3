// Router logits: a small matrix product in FP32 whose sums have one fixed order.
#include "routing/logits.h"

#include <array>
#include <cmath>
#include <vector>

#include "core/formats/bf16.h"

namespace megamoe::routing {
namespace {

constexpr size_t kLanes = 16;  // Independent sums, so that the compiler may use vectors without changing an order.

float dot(const float* a, const float* b, size_t count) {
  std::array<float, kLanes> sums{};
  size_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[begin + lane] * b[begin + lane];
  }
  for (size_t lane = 0; begin + lane < count; ++lane) sums[lane] += a[begin + lane] * b[begin + lane];
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

template <class Element, class Decode>
void multiply(std::span<const Element> hidden_states, uint32_t hidden, std::span<const float> gate_weight,
              std::span<const float> gate_bias, std::span<float> logits, Decode decode) {
  const size_t num_experts = gate_weight.size() / hidden;
  const size_t num_tokens = hidden_states.size() / hidden;
  std::vector<float> row(hidden);
  for (size_t token = 0; token < num_tokens; ++token) {
    for (size_t col = 0; col < hidden; ++col) row[col] = decode(hidden_states[token * hidden + col]);
    for (size_t expert = 0; expert < num_experts; ++expert) {
      float& logit = logits[token * num_experts + expert];
      logit = dot(row.data(), gate_weight.data() + expert * hidden, hidden);
      if (!gate_bias.empty()) logit += gate_bias[expert];
    }
  }
}

}  // namespace

void router_logits(std::span<const uint16_t> hidden_states, uint32_t hidden, std::span<const float> gate_weight,
                   std::span<const float> gate_bias, std::span<float> logits) {
  multiply(hidden_states, hidden, gate_weight, gate_bias, logits, core::bf16_decode);
}

void router_logits(std::span<const float> hidden_states, uint32_t hidden, std::span<const float> gate_weight,
                   std::span<const float> gate_bias, std::span<float> logits) {
  multiply(hidden_states, hidden, gate_weight, gate_bias, logits, [](float value) { return value; });
}

void weigh_tokens(std::span<uint16_t> hidden_states, uint32_t hidden, std::span<const float> weights) {
  for (size_t token = 0; token < weights.size(); ++token) {
    for (uint16_t& value : hidden_states.subspan(token * hidden, hidden)) {
      value = core::bf16_encode(core::bf16_decode(value) * weights[token]);
    }
  }
}

void sigmoid(std::span<float> logits) {
  for (float& logit : logits) logit = 1.0f / (1.0f + std::exp(-logit));
}

}  // namespace megamoe::routing
