/* What both programs check with: says what does not hold, and ends the function with 1. */
#pragma once

#include <megamoe/megamoe.h>
#include <stdio.h>

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      printf("line %d: %s; last error: %s\n", __LINE__, #condition, megamoe_last_error()); \
      return 1;                                                                            \
    }                                                                                      \
  } while (0)
