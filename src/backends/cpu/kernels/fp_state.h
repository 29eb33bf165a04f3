// The floating-point state that the kernels compute in.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace megamoe::cpu {

/// Default state (round to nearest even, denormals kept, exceptions masked) until the end of the scope.
class DefaultFpState {
 public:
  DefaultFpState() {
#if defined(__x86_64__)
    if (caller_ != kDefault) _mm_setcsr(kDefault);
#endif
  }
  ~DefaultFpState() {
#if defined(__x86_64__)
    if ((caller_ & ~kFlags) != kDefault) _mm_setcsr(caller_);
#endif
  }
  DefaultFpState(const DefaultFpState&) = delete;
  DefaultFpState& operator=(const DefaultFpState&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1f80;
  static constexpr unsigned kFlags = 0x3f;  // sticky exception flags: no meaning here
  const unsigned caller_ = _mm_getcsr();
#endif
};

}  // namespace megamoe::cpu
