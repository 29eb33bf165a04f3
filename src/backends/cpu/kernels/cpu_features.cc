// CPUID and XGETBV, read as the Intel and AMD manuals define them; a test compares the answers with Highway's library.
#include "backends/cpu/kernels/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdint>
#include <initializer_list>

namespace megamoe::cpu {
namespace {

#if defined(__x86_64__)

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Leaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr bool has(uint32_t word, std::initializer_list<uint32_t> bits) {
  for (const uint32_t bit : bits)
    if ((word >> bit & 1) == 0) return false;
  return true;
}

/// Register state that the operating system saves: XCR0.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

SimdLevel highest_level() {
  const Leaf basic = cpuid(1), extended = cpuid(7), amd = cpuid(0x80000001);
  // ECX of leaf 1: PCLMULQDQ 1, SSSE3 9, SSE4.1 19, SSE4.2 20, AES 25.
  if (!has(basic.ecx, {1, 9, 19, 20, 25})) return SimdLevel::kScalar;
  // FMA 12, OSXSAVE 27, AVX 28, F16C 29; leaf 7 EBX: BMI1 3, AVX2 5, BMI2 8; extended ECX: LZCNT 5.
  const bool avx2 = has(basic.ecx, {12, 27, 28, 29}) && has(extended.ebx, {3, 5, 8}) && has(amd.ecx, {5});
  constexpr uint64_t kYmm = 0b110, kZmm = 0b1110'0110;
  if (!avx2 || (saved_state() & kYmm) != kYmm) return SimdLevel::kSse4;
  // Leaf 7 EBX: AVX512F 16, DQ 17, CD 28, BW 30, VL 31.
  if (!has(extended.ebx, {16, 17, 28, 30, 31}) || (saved_state() & kZmm) != kZmm) return SimdLevel::kAvx2;
  return SimdLevel::kAvx512;
}

#else

SimdLevel highest_level() { return SimdLevel::kScalar; }

#endif

}  // namespace

bool cpu_supports(SimdLevel level) {
  static const SimdLevel kHighest = highest_level();
  return level <= kHighest;
}

}  // namespace megamoe::cpu
