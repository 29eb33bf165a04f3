// Data every test shares: GEN (seeded random) and TAG (closed form: finds any misroute, drop or double count).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/reference/layer.h"
#include "megamoe/shape.h"

namespace megamoe::test {

uint64_t splitmix64(uint64_t value);

/// g(seed, i) = 2 * (top 24 bits of splitmix64(seed * 2^32 + i)) / 2^24 - 1, in [-1, 1).
double gen_value(uint64_t seed, uint64_t i);

/// The weights of all experts, contiguous, in the library's layout. Change what a test needs; every field is plain
/// data.
struct TestWeights {
  MoeShape shape;
  std::vector<uint8_t> w13;                     ///< [E][2I][H], gate rows then up rows.
  std::vector<float> w13_scale;                 ///< [E][2][ceil(I/128)][H/128]
  std::vector<uint8_t> w2;                      ///< [E][H][I]
  std::vector<float> w2_scale;                  ///< [E][H/128][ceil(I/128)]
  std::shared_ptr<const TestWeights> shared{};  ///< Of the shared experts; null where there are none.
  float routed_scaling = 1.0f;                  ///< For the oracle.

  uint64_t w13_elements_per_expert() const { return uint64_t{2} * shape.intermediate * shape.hidden; }
  uint64_t w2_elements_per_expert() const { return uint64_t{shape.hidden} * shape.intermediate; }
  uint64_t w13_scales_per_expert() const;
  uint64_t w2_scales_per_expert() const;

  /// The oracle's view of these buffers; valid while they live and keep their size.
  reference::Layer layer(std::optional<float> clamp = std::nullopt) const;
};

/// All codes 0 (value 0) and all scales 1.
TestWeights zero_weights(const MoeShape& shape);

/// Value (expert, row, column) of an unquantised matrix; for w13 rows 0 .. I-1 are gate and I .. 2I-1 are up.
using WeightValue = std::function<double(uint32_t expert, uint32_t row, uint32_t column)>;
/// Quantises per 128x128 block: scale = FP32(amax / 448), or 1 for an all-zero block; code = nearest E4M3 of value /
/// scale.
TestWeights quantize_weights(const MoeShape& shape, const WeightValue& w13, const WeightValue& w2);

/// GEN: w13 = g(seed, i) * 2 / sqrt(H), w2 = g(seed + 1, i) * 2 / sqrt(I), i the linear index in [E][rows][columns].
TestWeights gen_weights(const MoeShape& shape, uint64_t seed);

/// TAG: gate rows have 1 in column 0, up rows 1 in column 1, w2[e][h][0] = 1 where h mod E == e; all scales 1. Needs H
/// >= E.
TestWeights tag_weights(const MoeShape& shape);

/// The tokens of one rank.
struct TestTokens {
  uint64_t num_tokens = 0;
  std::vector<uint16_t> hidden;         ///< [T][H] BF16
  std::vector<int64_t> topk_ids;        ///< [T][K]
  std::vector<float> topk_weights;      ///< [T][K]
  std::vector<float> shared_weights{};  ///< [T][shared experts]; empty: 1.
  std::vector<uint32_t> tags{};         ///< TAG only: the E4M3 code v of a_t = v / 448 of each token.

  /// The oracle's view of these buffers; valid while they live and keep their size.
  reference::Input input() const;
};

/// The same tokens as E4M3 codes with scales, for the FP8 entrance.
struct QuantizedTokens {
  std::vector<uint8_t> codes;  ///< [T][H]
  std::vector<float> scales;   ///< [T][H/128]
};
QuantizedTokens quantize_tokens(const MoeShape& shape, const TestTokens& tokens);

/// GEN: hidden = BF16(g(seed, i)), K distinct experts per token, uniform, and positive weights that sum to about 1.
TestTokens gen_tokens(const MoeShape& shape, uint64_t num_tokens, uint64_t seed);

/// TAG: x[t][0] = 1, x[t][1] = a_t, else 0. Token t has tag first_tag + t; tags repeat after 126, the positive E4M3
/// numbers. Ids are all -1 and weights 1/K: a test fills in the ids it needs.
TestTokens tag_tokens(const MoeShape& shape, uint64_t num_tokens, uint64_t first_tag = 0);

/// TAG's right answer: silu(1) * a_t * (sum of the weights of the slots whose id == column mod E).
double tag_expected(const MoeShape& shape, const TestTokens& tokens, uint64_t token, uint32_t column);

/// Distance of neighbouring BF16 numbers around `value`.
double bf16_ulp(double value);

}  // namespace megamoe::test
