// XLA computes with denormals flushed to zero (FTZ, DAZ); a sum's bits must not depend on which thread computes it.
#ifndef XLA_FFI_HOST_NUMBERS_FLOAT_MODE_H_
#define XLA_FFI_HOST_NUMBERS_FLOAT_MODE_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace passing {

// Round to nearest, keep denormals, while in scope. On other machines than x86-64 the thread must be in that mode.
class DefaultFloatMode {
 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
#if defined(__x86_64__)
  DefaultFloatMode() {
    if (before_ & kNotDefault) _mm_setcsr(before_ & ~kNotDefault);
  }
  ~DefaultFloatMode() {
    if (before_ & kNotDefault) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kNotDefault = 0x8000 | 0x6000 | 0x0040;  // FTZ, rounding control, DAZ
  const unsigned before_ = _mm_getcsr();
#else
  DefaultFloatMode() {}
  ~DefaultFloatMode() {}
#endif
};

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_FLOAT_MODE_H_
