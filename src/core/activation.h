// SwiGLU with an optional clamp and the top-k weight, as every backend computes it between its two GEMMs.
#pragma once

#include <cmath>

#include "core/bits.h"
#include "core/float_ops.h"

namespace megamoe::core {

/// The clamp value that clamps nothing.
inline constexpr float kNoClamp = bit_cast<float>(0x7f800000u);

/// A clamp is a positive number or +infinity; zero, negative numbers and NaN are refused at creation.
MEGAMOE_HD constexpr bool is_valid_clamp(float clamp) { return clamp > 0.0f; }

/// Only from above. NaN passes.
MEGAMOE_HD constexpr float clamp_gate(float gate, float clamp) { return gate > clamp ? clamp : gate; }

/// On both sides. NaN passes.
MEGAMOE_HD constexpr float clamp_up(float up, float clamp) { return up > clamp ? clamp : (up < -clamp ? -clamp : up); }

/// (silu(min(gate, clamp)) * clamp(up, -clamp, clamp)) * topk_weight in FP32, each operation rounded once. `exp(x)` is
/// the backend's exponential; its overflow to infinity is welcome (silu of a large negative number is then -0).
template <class Exp>
MEGAMOE_HD inline float swiglu(float gate, float up, float clamp, float topk_weight, Exp&& exp) {
  const float g = clamp_gate(gate, clamp);
  const float u = clamp_up(up, clamp);
  const float silu = div_rn(g, add_rn(1.0f, exp(-g)));
  return mul_rn(mul_rn(silu, u), topk_weight);
}

/// The host's exponential.
struct StdExp {
  float operator()(float value) const { return std::exp(value); }
};

}  // namespace megamoe::core
