#include "wire/packet_key.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "../tests/xla_ffi/wire/random_key.h"
#include "wire/sip_hash.h"

namespace passing::wire {
namespace {

std::vector<uint8_t> SealedPacket(const PacketKey& key, uint32_t lane_count, uint64_t position, uint64_t seed) {
  std::mt19937_64 random(seed);
  const Header header{.job = static_cast<uint16_t>(random()),
                      .epoch = 3,
                      .worker = 2,
                      .slot = 17,
                      .sequence = static_cast<uint32_t>(position),
                      .element_count = static_cast<uint16_t>(lane_count),
                      .tagged = true};
  std::vector<uint8_t> packet(header.packet_bytes());
  Encode(header, packet.data());
  for (size_t i = kHeaderBytes; i < packet.size(); ++i) packet[i] = static_cast<uint8_t>(random());
  key.Seal(packet.data(), lane_count, position);
  return packet;
}

uint64_t BigEndian(const uint8_t* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | at[i];
  return value;
}

// As the header file describes it, a lane at a time.
uint64_t ReferenceTag(const std::array<uint8_t, PacketKey::kBytes>& key, const std::vector<uint8_t>& packet,
                      uint64_t position) {
  const size_t lanes = (packet.size() - kHeaderBytes - kTagBytes) / 4, half = (lanes + 1) / 2;
  const auto lane = [&](size_t i) {
    return i < lanes ? static_cast<uint32_t>(BigEndian(&packet[kHeaderBytes + 4 * i], 4)) : 0;
  };
  const auto word = [&](size_t i) { return static_cast<uint32_t>(BigEndian(&key[16 + 4 * i], 4)); };
  std::array<uint64_t, 5> words{BigEndian(&packet[0], 8), BigEndian(&packet[8], 8),
                                BigEndian(&packet[16], 4) << 32 | position >> 32, 0, 0};
  for (size_t pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < half; ++i) {
      const uint32_t first = lane(i) + word(i + pass);
      const uint32_t second = lane(half + i) + word(PacketKey::kWords + i + pass);
      words[3 + pass] += uint64_t{first} * second;
    }
  }
  return SipHash({BigEndian(&key[0], 8), BigEndian(&key[8], 8)}, words);
}

TEST(PacketKey, sealsAsDescribed) {
  const auto bytes = RandomKeyBytes(1);
  const PacketKey key(bytes);
  for (uint32_t lanes = 1; lanes <= kMaxLanes; ++lanes) {
    const uint64_t position = uint64_t{lanes} << 30;
    const std::vector<uint8_t> packet = SealedPacket(key, lanes, position, lanes);
    ASSERT_EQ(BigEndian(packet.data() + packet.size() - kTagBytes, 8), ReferenceTag(bytes, packet, position)) << lanes;
    ASSERT_TRUE(key.Fits(packet, position));
  }
}

TEST(PacketKey, anyFlippedBitIsSeen) {
  const PacketKey key = RandomKey(2);
  for (const uint32_t lanes : {1u, 2u, 37u, kMaxLanes}) {
    std::vector<uint8_t> packet = SealedPacket(key, lanes, 5, lanes);
    for (size_t bit = 0; bit < 8 * packet.size(); ++bit) {
      packet[bit / 8] ^= 1 << bit % 8;
      ASSERT_FALSE(key.Fits(packet, 5)) << lanes << " lanes, bit " << bit;
      packet[bit / 8] ^= 1 << bit % 8;
    }
    ASSERT_TRUE(key.Fits(packet, 5));
  }
}

TEST(PacketKey, anotherKeyOrPositionDoesNotFit) {
  const PacketKey key = RandomKey(3);
  const std::vector<uint8_t> packet = SealedPacket(key, 100, 7, 1);
  EXPECT_FALSE(RandomKey(4).Fits(packet, 7));
  EXPECT_FALSE(key.Fits(packet, 7 + (uint64_t{1} << 32)));  // the same sequence, one wrap later
}

// Lanes that change places, or that are the same in both halves, are what a weak fingerprint would mix up.
TEST(PacketKey, lanesThatChangePlacesAreSeen) {
  const PacketKey key = RandomKey(5);
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 10'000; ++trial) {
    const auto lanes = static_cast<uint32_t>(2 + random() % (kMaxLanes - 1));
    std::vector<uint8_t> packet = SealedPacket(key, lanes, 9, static_cast<uint64_t>(trial));
    uint8_t* one = &packet[kHeaderBytes + 4 * (random() % lanes)];
    uint8_t* other = &packet[kHeaderBytes + 4 * (random() % lanes)];
    if (std::memcmp(one, other, 4) == 0) continue;
    std::swap_ranges(one, one + 4, other);
    ASSERT_FALSE(key.Fits(packet, 9)) << lanes << " lanes, trial " << trial;
  }
}

}  // namespace
}  // namespace passing::wire
