// Row-wise kernels of the CPU backend, once per SIMD level: quantise, activate, round to BF16, combine. Multiplications
// and additions stay separate (no fused ones), so that every level gives the same bits.
#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/kernel_table.h"
#include "backends/cpu/kernels/simd_targets.h"
#include "core/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/row_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace megamoe::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));

HWY_INLINE VF load_bf16(const uint16_t* x) {
  const hn::Rebind<uint16_t, DU> d16;
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, x))));
}

HWY_INLINE VI magnitude_bits(VF value) { return hn::And(hn::BitCast(DI(), value), hn::Set(DI(), 0x7fffffff)); }

HWY_INLINE hn::Mask<DI> is_nan_magnitude(VI magnitude) { return hn::Gt(magnitude, hn::Set(DI(), 0x7f800000)); }

/// The larger of two magnitudes as bit patterns (their order is that of the numbers); a NaN counts as zero.
HWY_INLINE VI amax_update(VI amax_bits, VF value) {
  const VI magnitude = magnitude_bits(value);
  return hn::Max(amax_bits, hn::IfThenZeroElse(is_nan_magnitude(magnitude), magnitude));
}

HWY_INLINE float largest(VI amax_bits) { return core::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(DI(), amax_bits))); }

/// core::e4m3_encode for a vector; one code in the low byte of each lane.
HWY_INLINE VI e4m3_encode(VF value) {
  const DI di;
  const VI bits = hn::BitCast(di, value);
  const VI magnitude = magnitude_bits(value);
  const VI sign = hn::BitCast(di, hn::And(hn::ShiftRight<24>(hn::BitCast(DU(), bits)), hn::Set(DU(), 0x80)));

  const VI saturated = hn::Min(magnitude, hn::Set(di, 0x43e00000));  // 448
  const VI odd = hn::And(hn::ShiftRight<20>(saturated), hn::Set(di, 1));
  const VI rounded = hn::ShiftRight<20>(hn::Add(saturated, hn::Add(odd, hn::Set(di, 0x7ffff))));
  const VI normal = hn::Sub(rounded, hn::Set(di, (127 - 7) << 3));

  // Next to 2^14 the FP32 numbers are 2^-9 apart, as the subnormal E4M3 numbers are: one addition rounds to them.
  const VF anchored = hn::Add(hn::BitCast(DF(), magnitude), hn::Set(DF(), 16384.0f));
  const VI subnormal = hn::Sub(hn::BitCast(di, anchored), hn::Set(di, 0x46800000));

  const VI code = hn::Or(sign, hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x3c800000)), subnormal, normal));
  return hn::IfThenElse(is_nan_magnitude(magnitude), hn::Set(di, core::kE4m3NanCode), code);
}

HWY_INLINE void store_codes(VI codes, uint8_t* out) {
  const hn::Rebind<uint8_t, DI> d8;
  hn::StoreU(hn::DemoteTo(d8, codes), d8, out);
}

void quantize_rows_bf16(const uint16_t* x, int64_t x_row_stride, int64_t num_rows, int64_t hidden, uint8_t* codes,
                        int64_t codes_row_stride, float* scales, int64_t scales_row_stride) {
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t group = 0; group < hidden / kScaleGroup; ++group) {
      const uint16_t* in = x + row * x_row_stride + group * kScaleGroup;
      uint8_t* out = codes + row * codes_row_stride + group * kScaleGroup;
      VI amax_bits = hn::Zero(DI());
      for (int64_t i = 0; i < kScaleGroup; i += kLanes) amax_bits = amax_update(amax_bits, load_bf16(in + i));
      const float scale = core::group_scale(largest(amax_bits));
      const VF inverse = hn::Set(DF(), core::group_inverse(scale));
      for (int64_t i = 0; i < kScaleGroup; i += kLanes) {
        store_codes(e4m3_encode(hn::Mul(load_bf16(in + i), inverse)), out + i);
      }
      scales[row * scales_row_stride + group] = scale;
    }
  }
}

/// 2^exponent for -126 <= exponent <= 127.
HWY_INLINE VF power_of_two(VI exponent) {
  return hn::BitCast(DF(), hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(DI(), 127))));
}

/// exp(x) = 2^n * exp(r), |r| <= ln(2) / 2, with exp(r) = 1 + (r + r^2 * q(r)).
HWY_INLINE VF exp_vector(VF x) {
  const DF df;
  const auto is_nan = hn::IsNaN(x);
  const VF safe = hn::IfThenZeroElse(is_nan, x);
  const VF bounded = hn::Min(hn::Max(safe, hn::Set(df, -104.0f)), hn::Set(df, 89.0f));

  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const VF round_anchor = hn::Set(df, 12582912.0f);
  const VF anchored = hn::Add(hn::Mul(bounded, hn::Set(df, 1.44269504f)), round_anchor);
  const VI n = hn::Sub(hn::BitCast(DI(), anchored), hn::BitCast(DI(), round_anchor));
  const VF n_float = hn::Sub(anchored, round_anchor);

  // ln(2) in two parts; the first has 10 significant bits, so that its product with n is exact.
  const VF r_upper = hn::Sub(bounded, hn::Mul(n_float, hn::Set(df, 0.693359375f)));
  const VF r = hn::Sub(r_upper, hn::Mul(n_float, hn::Set(df, -2.12194440e-4f)));

  // q(r) ~ (exp(r) - 1 - r) / r^2, minimax of the relative error of exp(r) over |r| <= 0.34658: 5.2e-11.
  VF q = hn::Set(df, 0.00019790350052062422f);
  q = hn::Add(hn::Mul(q, r), hn::Set(df, 0.0013944651000201702f));
  q = hn::Add(hn::Mul(q, r), hn::Set(df, 0.008333496749401093f));
  q = hn::Add(hn::Mul(q, r), hn::Set(df, 0.04166629537940025f));
  q = hn::Add(hn::Mul(q, r), hn::Set(df, 0.1666666567325592f));
  q = hn::Add(hn::Mul(q, r), hn::Set(df, 0.5f));
  const VF exp_r = hn::Add(hn::Set(df, 1.0f), hn::Add(r, hn::Mul(hn::Mul(r, r), q)));

  // Two steps: n reaches 128 and -150, beyond the exponents of normal numbers. Only the second one can round.
  const VI half_n = hn::ShiftRight<1>(n);
  const VF scaled = hn::Mul(hn::Mul(exp_r, power_of_two(half_n)), power_of_two(hn::Sub(n, half_n)));
  return hn::IfThenElse(is_nan, x, scaled);
}

HWY_INLINE VF swiglu_vector(VF gate, VF up, VF clamp, VF row_weight) {
  const DF df;
  const VF lowest = hn::Neg(clamp);
  const VF g = hn::IfThenElse(hn::Gt(gate, clamp), clamp, gate);
  const VF u = hn::IfThenElse(hn::Gt(up, clamp), clamp, hn::IfThenElse(hn::Lt(up, lowest), lowest, up));
  const VF silu = hn::Div(g, hn::Add(hn::Set(df, 1.0f), exp_vector(hn::Neg(g))));
  return hn::Mul(hn::Mul(silu, u), row_weight);
}

void swiglu_quantize_rows(const SwigluBlock& block) {
  const VF clamp = hn::Set(DF(), block.clamp);
  HWY_ALIGN float h[kScaleGroup];
  for (int64_t row = 0; row < block.num_rows; ++row) {
    const float* gate = block.gate + row * block.gate_row_stride;
    const float* up = block.up + row * block.up_row_stride;
    const VF row_weight = hn::Set(DF(), block.row_weights[row]);
    VI amax_bits = hn::Zero(DI());
    for (int64_t i = 0; i < block.width; i += kLanes) {
      const VF value = swiglu_vector(hn::LoadU(DF(), gate + i), hn::LoadU(DF(), up + i), clamp, row_weight);
      hn::Store(value, DF(), h + i);
      amax_bits = amax_update(amax_bits, value);
    }
    const float scale = core::group_scale(largest(amax_bits));
    const VF inverse = hn::Set(DF(), core::group_inverse(scale));
    uint8_t* codes = block.codes + row * block.codes_row_stride;
    for (int64_t i = 0; i < block.width; i += kLanes) {
      store_codes(e4m3_encode(hn::Mul(hn::Load(DF(), h + i), inverse)), codes + i);
    }
    block.scales[row * block.scales_row_stride] = scale;
  }
}

void exp_row(const float* x, int64_t count, float* y) {
  HWY_ALIGN float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t valid = count - i < kLanes ? count - i : kLanes;
    for (int64_t lane = 0; lane < valid; ++lane) lanes[lane] = x[i + lane];
    hn::Store(exp_vector(hn::Load(DF(), lanes)), DF(), lanes);
    for (int64_t lane = 0; lane < valid; ++lane) y[i + lane] = lanes[lane];
  }
}

/// Rounds to nearest even; each NaN becomes 0x7fc0.
HWY_INLINE void store_bf16(VF value, uint16_t* out) {
  const hn::Rebind<uint16_t, DI> d16;
  const VU bits = hn::BitCast(DU(), value);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1));
  const VU rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(DU(), 0x7fff))));
  const VI nan_or_rounded =
      hn::IfThenElse(is_nan_magnitude(magnitude_bits(value)), hn::Set(DI(), 0x7fc0), hn::BitCast(DI(), rounded));
  hn::StoreU(hn::DemoteTo(d16, nan_or_rounded), d16, out);
}

/// store_bf16 of the first `count` lanes.
HWY_INLINE void store_bf16_partly(VF value, int64_t count, uint16_t* out) {
  HWY_ALIGN uint16_t lanes[kLanes];
  store_bf16(value, lanes);
  for (int64_t lane = 0; lane < count; ++lane) out[lane] = lanes[lane];
}

void float_rows_to_bf16(const float* x, int64_t x_row_stride, int64_t num_rows, int64_t num_columns, uint16_t* out,
                        int64_t out_row_stride) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* in = x + row * x_row_stride;
    uint16_t* out_row = out + row * out_row_stride;
    int64_t i = 0;
    for (; i + kLanes <= num_columns; i += kLanes) store_bf16(hn::LoadU(DF(), in + i), out_row + i);
    if (i < num_columns) {
      HWY_ALIGN float lanes[kLanes] = {};
      for (int64_t lane = 0; i + lane < num_columns; ++lane) lanes[lane] = in[i + lane];
      store_bf16_partly(hn::Load(DF(), lanes), num_columns - i, out_row + i);
    }
  }
}

void combine_rows(const uint16_t* const* rows, int64_t num_rows, int64_t hidden, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes) {
    VF sum = hn::Zero(DF());
    for (int64_t row = 0; row < num_rows; ++row) sum = hn::Add(sum, load_bf16(rows[row] + i));
    store_bf16(sum, out + i);
  }
  if (i < hidden) {
    HWY_ALIGN uint16_t lanes[kLanes] = {};
    VF sum = hn::Zero(DF());
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t lane = 0; i + lane < hidden; ++lane) lanes[lane] = rows[row][i + lane];
      sum = hn::Add(sum, load_bf16(lanes));
    }
    store_bf16_partly(sum, hidden - i, out + i);
  }
}

RowKernels row_kernels_of_level() {
  return {&quantize_rows_bf16, &swiglu_quantize_rows, &exp_row, &float_rows_to_bf16, &combine_rows};
}

}  // namespace HWY_NAMESPACE
}  // namespace megamoe::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megamoe::cpu {

RowKernels row_kernels(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar:
      return N_EMU128::row_kernels_of_level();
#if HWY_TARGETS & HWY_SSE4
    case SimdLevel::kSse4:
      return N_SSE4::row_kernels_of_level();
#endif
#if HWY_TARGETS & HWY_AVX2
    case SimdLevel::kAvx2:
      return N_AVX2::row_kernels_of_level();
#endif
#if HWY_TARGETS & HWY_AVX3
    case SimdLevel::kAvx512:
      return N_AVX3::row_kernels_of_level();
#endif
    default:
      return {};
  }
}

}  // namespace megamoe::cpu
#endif  // HWY_ONCE
