// Router logits: a small matrix product in FP32 whose sums have one fixed order.
#pragma once

#include <cstdint>
#include <span>

namespace megamoe::routing {

/// logits[t][e] = sum over columns of hidden[t][c] * weight[e][c] (+ bias[e]), products and sums in FP32. The order of
/// a sum depends on nothing but `hidden`: the same bits for any number of tokens, alone or among others.
/// @param hidden_states  [T][hidden]; BF16 bit patterns, or FP32
/// @param gate_weight    [E][hidden]
/// @param gate_bias      [E], or empty
/// @param logits         [T][E]
void router_logits(std::span<const uint16_t> hidden_states, uint32_t hidden, std::span<const float> gate_weight,
                   std::span<const float> gate_bias, std::span<float> logits);
void router_logits(std::span<const float> hidden_states, uint32_t hidden, std::span<const float> gate_weight,
                   std::span<const float> gate_bias, std::span<float> logits);

/// Multiplies each token by its weight, rounded to BF16: what a router does whose weight is on the input.
/// @param hidden_states  [T][hidden], BF16 bit patterns, changed in place
/// @param weights        [T]
void weigh_tokens(std::span<uint16_t> hidden_states, uint32_t hidden, std::span<const float> weights);

/// 1 / (1 + exp(-logit)): the weight of a shared expert that has a gate.
void sigmoid(std::span<float> logits);

}  // namespace megamoe::routing
