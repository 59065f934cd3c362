// The clock of everything that has timers.
#ifndef XLA_FFI_NET_CLOCK_H_
#define XLA_FFI_NET_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace passing {

inline int64_t MonotonicUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace passing

#endif  // XLA_FFI_NET_CLOCK_H_
