// The keyed tag behind a packet's lanes. Nobody who doesn't know the key can write or change a packet.
//
// The tag is SipHash-2-4 (Aumasson, Bernstein 2012) of the header, the upper half of the position and a fingerprint of
// the lanes. The fingerprint is NH (Black, Halevi, Krawczyk, Krovetz, Rogaway 1999; RFC 4418), two passes of 64 bits
// with the key shifted for the second (Toeplitz). Two packets of other lanes, but with the same header, have the same
// fingerprint with a probability of 2^-64, and a tag is guessed with 2^-64. No two genuine packets have the same header
// and position but equal ones, so what is known of earlier tags doesn't help.
//
// SipHash alone would take ten times as long (benchmarks/micro/packet_key_benchmark.cc).
#ifndef XLA_FFI_WIRE_PACKET_KEY_H_
#define XLA_FFI_WIRE_PACKET_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/header.h"

namespace passing::wire {

class PacketKey {
 public:
  // Lanes are taken in pairs, one of the first half and one of the second; each half has its words, and one more, as
  // the second pass begins with the second word.
  static constexpr size_t kWords = kMaxLanes / 2 + 1;
  static constexpr size_t kBytes = 16 + 2 * 4 * kWords;

  // `bytes`: uniformly random, in network order.
  explicit PacketKey(std::span<const uint8_t, kBytes> bytes);

  // Writes the tag behind the lanes of a packet that carries `lane_count` of them. `position`: its sequence in full.
  void Seal(uint8_t* packet, uint32_t lane_count, uint64_t position) const;
  // Is the tag behind the lanes of this packet, which wire::Decode has found right, the one that Seal writes?
  bool Fits(std::span<const uint8_t> packet, uint64_t position) const;

 private:
  uint64_t TagOf(const uint8_t* packet, uint32_t lane_count, uint64_t position) const;

  std::array<uint64_t, 2> sip_;
  std::array<uint32_t, kWords> first_;
  std::array<uint32_t, kWords> second_;
};

// The keys of a job member: one for its contributions, one for the results of the job.
struct MemberKeys {
  PacketKey contribution;
  PacketKey result;
};

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_PACKET_KEY_H_
