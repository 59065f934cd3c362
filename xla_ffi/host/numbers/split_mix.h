// SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
#ifndef XLA_FFI_HOST_NUMBERS_SPLIT_MIX_H_
#define XLA_FFI_HOST_NUMBERS_SPLIT_MIX_H_

#include <cstdint>

namespace passing {

inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15;

// Returns the number that follows `state`; the next state is `state` + kSplitMixStep. Each of its bits depends on every
// bit of `state`.
inline uint64_t SplitMix64(uint64_t state) {
  state += kSplitMixStep;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
  return state ^ (state >> 31);
}

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_SPLIT_MIX_H_
