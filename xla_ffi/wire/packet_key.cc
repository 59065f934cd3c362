#include "wire/packet_key.h"

#include <cassert>

#include "wire/lanes.h"
#include "wire/sip_hash.h"

namespace passing::wire {
namespace {

uint64_t Load64(const uint8_t* at) { return uint64_t{LoadLane(at, 0)} << 32 | LoadLane(at, 1); }

void Store64(uint8_t* at, uint64_t value) {
  StoreLane(at, 0, static_cast<uint32_t>(value >> 32));
  StoreLane(at, 1, static_cast<uint32_t>(value));
}

// NH of `pairs` pairs of lanes, of which the second ones begin at `second_half`.
PASSING_CLONES void AddPairs(const uint8_t* __restrict first_half, const uint8_t* __restrict second_half,
                             uint32_t pairs, const uint32_t* __restrict first_key,
                             const uint32_t* __restrict second_key, uint64_t* __restrict fingerprint) {
  uint64_t pass0 = 0, pass1 = 0;
  for (uint32_t i = 0; i < pairs; ++i) {
    const uint32_t first = LoadLane(first_half, i);
    const uint32_t second = LoadLane(second_half, i);
    pass0 += uint64_t{first + first_key[i]} * uint64_t{second + second_key[i]};
    pass1 += uint64_t{first + first_key[i + 1]} * uint64_t{second + second_key[i + 1]};
  }
  fingerprint[0] = pass0;
  fingerprint[1] = pass1;
}

}  // namespace

PacketKey::PacketKey(std::span<const uint8_t, kBytes> bytes) : sip_{Load64(&bytes[0]), Load64(&bytes[8])} {
  for (size_t i = 0; i < kWords; ++i) {
    first_[i] = LoadLane(&bytes[16], i);
    second_[i] = LoadLane(&bytes[16], kWords + i);
  }
}

uint64_t PacketKey::TagOf(const uint8_t* packet, uint32_t lane_count, uint64_t position) const {
  assert(lane_count <= kMaxLanes);
  const uint8_t* lanes = packet + kHeaderBytes;
  const uint32_t half = (lane_count + 1) / 2, pairs = lane_count / 2;
  std::array<uint64_t, 5> words;
  AddPairs(lanes, lanes + 4 * size_t{half}, pairs, first_.data(), second_.data(), &words[3]);
  if (pairs < half) {  // the last one has no partner: as if it were zero
    const uint32_t last = LoadLane(lanes, pairs);
    words[3] += uint64_t{last + first_[pairs]} * second_[pairs];
    words[4] += uint64_t{last + first_[pairs + 1]} * second_[pairs + 1];
  }
  static_assert(kHeaderBytes == 20);
  words[0] = Load64(packet);
  words[1] = Load64(packet + 8);
  words[2] = uint64_t{LoadLane(packet, 4)} << 32 | position >> 32;
  return SipHash(sip_, words);
}

void PacketKey::Seal(uint8_t* packet, uint32_t lane_count, uint64_t position) const {
  Store64(packet + kHeaderBytes + 4 * size_t{lane_count}, TagOf(packet, lane_count, position));
}

bool PacketKey::Fits(std::span<const uint8_t> packet, uint64_t position) const {
  const size_t lane_bytes = packet.size() - kHeaderBytes - kTagBytes;
  return Load64(packet.data() + kHeaderBytes + lane_bytes) ==
         TagOf(packet.data(), static_cast<uint32_t>(lane_bytes / 4), position);
}

}  // namespace passing::wire
