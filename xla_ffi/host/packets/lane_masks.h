// Masks keep the lanes of confidential sums from everybody but the job's hosts. The switch adds them up like any lanes.
//
// Let P(r) be pseudorandom lanes, for r from 0 to H - 1, and P(H) = 0. Rank r sends x + P(r) - P(r + 1), modulo 2^32.
// So the sum over all ranks is the sum of the x, and P(0), which every host takes off again (Bonawitz et al.: Practical
// Secure Aggregation, CCS 2017, has such masks for each pair of hosts, as these don't trust each other).
//
// The H masks of a chunk are independent, as the P are: they give P(H - 1), then P(H - 2), and so on. So neither
// packets, nor the sums of racks, nor results tell anything but their length to somebody who doesn't know the key.
//
// P(r) is AES of the chunk's position, r and the lane's index, by a key of the epoch. The position is counted in 64
// bits, so it never comes again in an epoch, and each has one meaning (docs/internals/protocol.md): a host sends the
// same lanes there again, or none. Hosts' own randomness is in the epoch's key (jax_passing/protocol/keys.py), so
// nobody else can make them use one twice.
#ifndef XLA_FFI_HOST_PACKETS_LANE_MASKS_H_
#define XLA_FFI_HOST_PACKETS_LANE_MASKS_H_

#include <array>
#include <cstdint>

#include "host/packets/aes.h"

namespace passing {

class LaneMasks {
 public:
  using Key = std::array<uint8_t, Aes::kKeyBytes>;

  LaneMasks(const Key& key, uint32_t rank, uint32_t world_size)
      : aes_(key), rank_(rank), is_last_(rank + 1 == world_size) {}

  // Masks `count` lanes, at most wire::kMaxLanes, of this rank's contribution.
  void Mask(uint64_t position, uint32_t count, uint8_t* lanes) const;
  // Takes the mask off a result.
  void Unmask(uint64_t position, uint32_t count, const uint8_t* masked, uint8_t* lanes) const;

 private:
  const Aes aes_;
  const uint32_t rank_;
  const bool is_last_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_LANE_MASKS_H_
