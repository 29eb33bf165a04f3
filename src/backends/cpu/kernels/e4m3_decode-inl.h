// E4M3 codes to FP32, exactly: the two bytes of the equal BF16 number come from byte arithmetic and two small tables,
// so that subnormal codes never become FP32 subnormals. Compiled once per SIMD level.
#if defined(MEGAMOE_CPU_E4M3_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGAMOE_CPU_E4M3_DECODE_INL_H
#undef MEGAMOE_CPU_E4M3_DECODE_INL_H
#else
#define MEGAMOE_CPU_E4M3_DECODE_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace megamoe::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU32 = hn::ScalableTag<uint32_t>;
using DU16 = hn::ScalableTag<uint16_t>;
using DU8 = hn::ScalableTag<uint8_t>;
using VF = hn::Vec<DF>;
using VU32 = hn::Vec<DU32>;
using VU16 = hn::Vec<DU16>;
using VU8 = hn::Vec<DU8>;
constexpr size_t kLanes = hn::MaxLanes(DF());

/// Four FP32 vectors: element i of vector j is the number of byte j of 32-bit lane i.
struct Decoded {
  VF of_byte[4];
};

HWY_INLINE Decoded decode_codes(VU8 codes) {
  const DU8 d8;
  const DU16 d16;
  const DU32 d32;
  const DF df;
  // BF16 of a normal code (exponent e, fraction m): the upper byte holds (e + 120) >> 1, the lower one e's lowest bit,
  // m.
  alignas(16) static constexpr uint8_t kUpperOfExponent[16] = {60, 60, 61, 61, 62, 62, 63, 63,
                                                               64, 64, 65, 65, 66, 66, 67, 67};
  // BF16 of m * 2^-9, m = 0..7: 0x0000 0x3b00 0x3b80 0x3bc0 0x3c00 0x3c20 0x3c40 0x3c60.
  alignas(16) static constexpr uint8_t kUpperOfSubnormal[16] = {0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};
  alignas(16) static constexpr uint8_t kLowerOfSubnormal[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60};

  const VU8 exponent = hn::And(hn::BitCast(d8, hn::ShiftRight<3>(hn::BitCast(d16, codes))), hn::Set(d8, 0x0f));
  const VU8 fraction = hn::And(codes, hn::Set(d8, 0x07));
  const auto is_subnormal = hn::Eq(exponent, hn::Zero(d8));
  const VU8 magnitude = hn::And(codes, hn::Set(d8, 0x7f));
  const VU8 nan_bits = hn::And(hn::VecFromMask(d8, hn::Eq(magnitude, hn::Set(d8, 0x7f))), hn::Set(d8, 0x7f));

  VU8 upper = hn::TableLookupBytes(hn::LoadDup128(d8, kUpperOfExponent), exponent);
  VU8 lower = hn::And(hn::BitCast(d8, hn::ShiftLeft<4>(hn::BitCast(d16, codes))), hn::Set(d8, 0xf0));
  upper = hn::IfThenElse(is_subnormal, hn::TableLookupBytes(hn::LoadDup128(d8, kUpperOfSubnormal), fraction), upper);
  lower = hn::IfThenElse(is_subnormal, hn::TableLookupBytes(hn::LoadDup128(d8, kLowerOfSubnormal), fraction), lower);
  upper = hn::Or(hn::Or(upper, nan_bits), hn::And(codes, hn::Set(d8, 0x80)));

  const VU16 upper16 = hn::BitCast(d16, upper);
  const VU16 lower16 = hn::BitCast(d16, lower);
  const VU32 even = hn::BitCast(d32, hn::Or(hn::And(lower16, hn::Set(d16, 0x00ff)), hn::ShiftLeft<8>(upper16)));
  const VU32 odd = hn::BitCast(d32, hn::Or(hn::ShiftRight<8>(lower16), hn::And(upper16, hn::Set(d16, 0xff00))));
  const VU32 upper_half = hn::Set(d32, 0xffff0000u);
  return {{hn::BitCast(df, hn::ShiftLeft<16>(even)), hn::BitCast(df, hn::ShiftLeft<16>(odd)),
           hn::BitCast(df, hn::And(even, upper_half)), hn::BitCast(df, hn::And(odd, upper_half))}};
}

/// A row's `depth` codes as FP32. Within each chunk of 4 * kLanes the value of code 4 * lane + byte is stored at
/// byte * kLanes + lane: the tile kernels read scalars and follow the same order, so no shuffle is spent here.
HWY_INLINE void decode_row(const uint8_t* HWY_RESTRICT codes, size_t depth, float* HWY_RESTRICT out) {
  for (size_t i = 0; i < depth; i += 4 * kLanes) {
    const Decoded values = decode_codes(hn::LoadU(DU8(), codes + i));
    for (size_t byte = 0; byte < 4; ++byte) hn::Store(values.of_byte[byte], DF(), out + i + byte * kLanes);
  }
}

/// 16 bytes from each of the rows `first`, `first + 4`, ..., one row per 128-bit block.
HWY_INLINE VU32 load_row_blocks(const uint8_t* const* rows, size_t first, size_t offset) {
  const hn::Full128<uint8_t> d128;
#if HWY_TARGET == HWY_AVX3
  const hn::Half<DU8> dh;
  const auto lower = hn::Combine(dh, hn::LoadU(d128, rows[first + 4] + offset), hn::LoadU(d128, rows[first] + offset));
  const auto upper =
      hn::Combine(dh, hn::LoadU(d128, rows[first + 12] + offset), hn::LoadU(d128, rows[first + 8] + offset));
  return hn::BitCast(DU32(), hn::Combine(DU8(), upper, lower));
#elif HWY_TARGET == HWY_AVX2
  return hn::BitCast(
      DU32(), hn::Combine(DU8(), hn::LoadU(d128, rows[first + 4] + offset), hn::LoadU(d128, rows[first] + offset)));
#else
  return hn::BitCast(DU32(), hn::LoadU(d128, rows[first] + offset));
#endif
}

HWY_INLINE void decode_4_deep(VU32 codes, float* HWY_RESTRICT out, size_t stride) {
  const Decoded values = decode_codes(hn::BitCast(DU8(), codes));
  for (size_t byte = 0; byte < 4; ++byte) hn::Store(values.of_byte[byte], DF(), out + byte * stride);
}

/// Codes [kLanes rows][16 bytes at `offset`] to FP32 [16][kLanes], one output row every `stride` floats.
HWY_INLINE void decode_16_deep(const uint8_t* const* rows, size_t offset, float* HWY_RESTRICT out, size_t stride) {
  const hn::Repartition<uint64_t, DU32> d64;
  const DU32 d32;
  const VU32 row0 = load_row_blocks(rows, 0, offset);
  const VU32 row1 = load_row_blocks(rows, 1, offset);
  const VU32 row2 = load_row_blocks(rows, 2, offset);
  const VU32 row3 = load_row_blocks(rows, 3, offset);
  const auto lower01 = hn::BitCast(d64, hn::InterleaveLower(d32, row0, row1));
  const auto upper01 = hn::BitCast(d64, hn::InterleaveUpper(d32, row0, row1));
  const auto lower23 = hn::BitCast(d64, hn::InterleaveLower(d32, row2, row3));
  const auto upper23 = hn::BitCast(d64, hn::InterleaveUpper(d32, row2, row3));
  decode_4_deep(hn::BitCast(d32, hn::InterleaveLower(d64, lower01, lower23)), out, stride);
  decode_4_deep(hn::BitCast(d32, hn::InterleaveUpper(d64, lower01, lower23)), out + 4 * stride, stride);
  decode_4_deep(hn::BitCast(d32, hn::InterleaveLower(d64, upper01, upper23)), out + 8 * stride, stride);
  decode_4_deep(hn::BitCast(d32, hn::InterleaveUpper(d64, upper01, upper23)), out + 12 * stride, stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace megamoe::cpu
HWY_AFTER_NAMESPACE();

#endif
