// The rank that encodes a sum's elements, and what it rounds by.
#ifndef XLA_FFI_HOST_SUMS_RANK_H_
#define XLA_FFI_HOST_SUMS_RANK_H_

#include <cstdint>

namespace passing {

struct Rank {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint64_t seed = 0;  // JobConfig::seed
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_RANK_H_
