// The generator of random bits is xoshiro128++ (Blackman and Vigna: Scrambled linear pseudorandom number generators,
// ACM TOMS 2021), several of them side by side so that a loop over them fills whole vectors. SplitMix64 seeds those of
// each block, as its authors advise. No more is needed here: the bits must be uniform, and independent between ranks,
// sums and elements, but nobody has a reason to guess them. formats.h says how the loops are compiled.
#ifndef XLA_FFI_HOST_NUMBERS_RANDOM_BITS_H_
#define XLA_FFI_HOST_NUMBERS_RANDOM_BITS_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/numbers/split_mix.h"
#include "wire/lanes.h"

namespace passing::kernels {

inline constexpr uint32_t kGenerators = 16;
// A step of all of them makes the bits of so many elements, 16 for each.
inline constexpr uint32_t kStepElements = 2 * kGenerators;

// Writes the bits of `steps` steps of a block, from `first_step` on.
static PASSING_CLONES void RandomSteps(uint64_t key, uint64_t block, uint32_t first_step, uint32_t steps,
                                       uint32_t* __restrict words) {
  uint32_t state[4][kGenerators];
  for (uint32_t i = 0; i < 2 * kGenerators; ++i) {
    const uint64_t seed = SplitMix64(key + (block * 2 * kGenerators + i) * kSplitMixStep);
    const uint32_t word = i / kGenerators * 2, generator = i % kGenerators;
    state[word][generator] = static_cast<uint32_t>(seed);
    state[word + 1][generator] = static_cast<uint32_t>(seed >> 32);
  }
  for (uint32_t step = 0; step < first_step + steps; ++step) {
    uint32_t* __restrict at = words + (step < first_step ? 0 : size_t{kGenerators} * (step - first_step));
    for (uint32_t i = 0; i < kGenerators; ++i) {
      uint32_t a = state[0][i], b = state[1][i], c = state[2][i], d = state[3][i];
      at[i] = std::rotl(a + d, 7) + a;
      const uint32_t shifted = b << 9;
      c ^= a;
      d ^= b;
      b ^= c;
      a ^= d;
      c ^= shifted;
      d = std::rotl(d, 11);
      state[0][i] = a, state[1][i] = b, state[2][i] = c, state[3][i] = d;
    }
  }
}

}  // namespace passing::kernels

#endif  // XLA_FFI_HOST_NUMBERS_RANDOM_BITS_H_
