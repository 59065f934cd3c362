// Random bits for stochastic rounding: a pure function of names, so an element that is sent again, or with another
// scale, or in another chunk, is rounded by the same bits.
#ifndef XLA_FFI_HOST_NUMBERS_ROUNDING_H_
#define XLA_FFI_HOST_NUMBERS_ROUNDING_H_

#include <cstdint>

namespace passing {

// Names the elements that are rounded.
struct Rounding {
  bool to_nearest = false;  // without random bits
  uint64_t key = 0;         // of a rank's sum
  uint64_t block = 0;       // the block's number in the sum
  uint32_t first = 0;       // the first element's index in the block
};

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_ROUNDING_H_
