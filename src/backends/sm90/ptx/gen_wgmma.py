#!/usr/bin/env python3
"""Writes wgmma.cuh: one function per width of the E4M3 warpgroup multiply that a kernel spec uses."""

WIDTHS = (8, 16, 32, 64, 128)

HEAD = """\
// Warpgroup multiply of E4M3 operands in shared memory, FP32 sums in registers. PTX ISA 9.7.15 "wgmma".
// Written by gen_wgmma.py; change that file.
// clang-format off
#pragma once

#include <cstdint>

namespace megamoe::sm90::ptx {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits for all groups of this warp but the kPending newest.
template <int kPending = 0>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// An operand with rows of 128 bytes, 128-byte swizzle, 1,024 bytes from 8 rows to the next 8. Only the low word
/// depends on the address, in units of 16 bytes: 32 bytes further along K is +2.
__device__ __forceinline__ uint32_t operand_low(uint32_t shared_address) {
  return (shared_address & 0x3ffff) >> 4 | 1u << 16;
}
__device__ __forceinline__ uint64_t operand(uint32_t low) { return 0x4000004000000000ull | low; }

/// d (+)= a * b over K = 32: 64 rows of a, kN rows of b. That `multiply` does not read d shows in its constraints:
/// registers that seem to be read before they are written are kept free everywhere. `multiply_over` is for a d that has
/// been used: it gets the same registers, so nothing of what was done with d is put off until after the multiply.
template <int kN>
struct Wgmma;
"""

BODY = """
template <>
struct Wgmma<{n}> {{
  static __device__ __forceinline__ void multiply(float (&d)[{count}], uint64_t a, uint64_t b) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 {{"
{places}
        "}}, %{a}, %{b}, p, 1, 1;}}"
        : {writes}
        : "l"(a), "l"(b));
  }}
  static __device__ __forceinline__ void multiply_over(float (&d)[{count}], uint64_t a, uint64_t b) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 {{"
{places}
        "}}, %{a}, %{b}, p, 1, 1;}}"
        : {adds}
        : "l"(a), "l"(b));
  }}
  static __device__ __forceinline__ void multiply_add(float (&d)[{count}], uint64_t a, uint64_t b) {{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 {{"
{places}
        "}}, %{a}, %{b}, 1, 1, 1;"
        : {adds}
        : "l"(a), "l"(b));
  }}
}};
"""


def main():
    text = HEAD
    for n in WIDTHS:
        count = n // 2
        places = [", ".join(f"%{i}" for i in range(j, min(j + 16, count))) for j in range(0, count, 16)]
        places = ",\n".join(f'        "{p}' for p in places).replace(",\n", ', "\n') + '"'

        def operands(constraint, count=count):
            return ",\n          ".join(
                ", ".join(f'"{constraint}f"(d[{i}])' for i in range(j, min(j + 8, count))) for j in range(0, count, 8)
            )

        text += BODY.format(
            n=n, count=count, a=count, b=count + 1, places=places, writes=operands("="), adds=operands("+")
        )
    text += "\n}  // namespace megamoe::sm90::ptx\n"
    with open(__file__.replace("gen_wgmma.py", "wgmma.cuh"), "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    main()
