// The generator of random bits is Philox4x32 with 7 rounds (Salmon et al.: Parallel random numbers: as easy as 1, 2, 3,
// SC 2011), the fewest rounds with which it passes BigCrush. No more is needed here: the bits must be uniform, and
// independent between ranks, sums and elements, but nobody has a reason to guess them. formats.h says how the loop is
// compiled.
#ifndef XLA_FFI_HOST_NUMBERS_RANDOM_BITS_H_
#define XLA_FFI_HOST_NUMBERS_RANDOM_BITS_H_

#include <cstddef>
#include <cstdint>

#include "wire/lanes.h"

namespace passing::kernels {

// A call of the generator makes the bits of 8 elements, 16 for each. 16 calls make a tile, so that a loop over them
// fills whole vectors.
inline constexpr uint32_t kTileCalls = 16, kTileElements = 8 * kTileCalls;

// Writes the bits of `tiles` tiles of a block, 64 words each. Word w of a tile's call n stands at 16 w + n.
static PASSING_CLONES void RandomTiles(uint64_t key, uint64_t block, uint32_t first_tile, uint32_t tiles,
                                       uint32_t* __restrict words) {
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    uint32_t* __restrict at = words + size_t{4} * kTileCalls * tile;
    for (uint32_t n = 0; n < kTileCalls; ++n) {
      uint32_t c0 = (first_tile + tile) * kTileCalls + n, c1 = 0;
      auto c2 = static_cast<uint32_t>(block), c3 = static_cast<uint32_t>(block >> 32);
      auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 7
      for (int round = 0; round < 7; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
        c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(b);
        c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
      }
      at[n] = c0;
      at[kTileCalls + n] = c1;
      at[2 * kTileCalls + n] = c2;
      at[3 * kTileCalls + n] = c3;
    }
  }
}

}  // namespace passing::kernels

#endif  // XLA_FFI_HOST_NUMBERS_RANDOM_BITS_H_
