// Keys of packets for tests: as good as random, the same for the same seed.
#ifndef TESTS_XLA_FFI_WIRE_RANDOM_KEY_H_
#define TESTS_XLA_FFI_WIRE_RANDOM_KEY_H_

#include <array>
#include <cstdint>
#include <random>

#include "wire/packet_key.h"

namespace passing::wire {

inline std::array<uint8_t, PacketKey::kBytes> RandomKeyBytes(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::array<uint8_t, PacketKey::kBytes> bytes;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

inline PacketKey RandomKey(uint64_t seed) { return PacketKey(RandomKeyBytes(seed)); }

}  // namespace passing::wire

#endif  // TESTS_XLA_FFI_WIRE_RANDOM_KEY_H_
