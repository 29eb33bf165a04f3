// A check that ends the process, which is how a fuzzer learns of it.
#pragma once

#include <cstdio>
#include <cstdlib>

/// Unlike assert(), present in every build.
#define MEGAMOE_FUZZ_CHECK(condition)                                                      \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)
