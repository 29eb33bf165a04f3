// The entry point that libFuzzer calls; MEGAMOE_FUZZ_TARGET names the function of targets.h.
#include <cstddef>
#include <cstdint>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  megamoe::fuzz::MEGAMOE_FUZZ_TARGET({data, size});
  return 0;
}
