// The only portability macro: a function that both a host compiler and nvcc compile.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define MEGAMOE_HD __host__ __device__
#else
#define MEGAMOE_HD
#endif
