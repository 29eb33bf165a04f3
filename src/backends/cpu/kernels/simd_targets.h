// Which Highway targets are compiled, and how they map to SIMD levels. Included before any Highway header.
#pragma once

// The scalar reference is compiled whatever the compiler's baseline is; levels between the four named ones are left
// out.
#define HWY_COMPILE_ALL_ATTAINABLE
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)

// Highway leaves EMU128 out before GCC 12.3 because of https://gcc.gnu.org/bugzilla/show_bug.cgi?id=106322, a wrong
// vectorisation of 16-bit multiply-high. No kernel multiplies integers, and the tests compare every level bit by bit.
#define HWY_BROKEN_EMU128 0
