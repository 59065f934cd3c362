// The clock of everything that has timers.
#ifndef XLA_FFI_NET_CLOCK_H_
#define XLA_FFI_NET_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace passing {

inline int64_t MonotonicUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// `seconds`: as long as anybody may want to wait, or longer.
inline int64_t ToUs(double seconds) { return static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e6); }

}  // namespace passing

#endif  // XLA_FFI_NET_CLOCK_H_
