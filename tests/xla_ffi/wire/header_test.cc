#include "wire/header.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace passing::wire {
namespace {

std::vector<uint8_t> Packet(const Header& header) {
  std::vector<uint8_t> packet(header.packet_bytes());
  Encode(header, packet.data());
  return packet;
}

TEST(Header, roundTrip_randomHeaders) {
  std::mt19937 random(20'250'801);
  for (int i = 0; i < 20'000; ++i) {
    Header header;
    header.type = random() % 2 ? PacketType::kContribution : PacketType::kResult;
    header.job = static_cast<uint16_t>(random());
    header.epoch = static_cast<uint16_t>(random());
    header.worker = static_cast<uint16_t>(random());
    header.slot = static_cast<uint16_t>(random());
    header.sequence = static_cast<uint32_t>(random());
    header.version = random() % 2;
    header.lane_format = random() % 2 ? LaneFormat::kSumInt32 : LaneFormat::kMaxInt32;
    header.flags = random() % (header.lane_format == LaneFormat::kSumInt32 ? 32 : 8);
    header.element_count = static_cast<uint16_t>(1 + random() % kMaxLanes);
    Header decoded;
    ASSERT_EQ(Decode(Packet(header), decoded), DecodeError::kNone);
    ASSERT_EQ(decoded, header);
  }
}

TEST(Header, decode_everyLengthOfAGoodPacket) {
  const std::vector<uint8_t> packet = Packet({.element_count = 2});
  for (size_t bytes = 0; bytes <= packet.size(); ++bytes) {
    Header header;
    const DecodeError expected = bytes < kHeaderBytes    ? DecodeError::kTooShort
                                 : bytes < packet.size() ? DecodeError::kBadLength
                                                         : DecodeError::kNone;
    // A copy of its own, so that an address sanitizer sees every byte read past the end.
    const std::vector<uint8_t> cut(packet.begin(), packet.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_EQ(Decode(cut, header), expected) << bytes;
  }
}

TEST(Header, decode_randomBytesNeverCrash) {
  std::mt19937 random(7);
  for (int i = 0; i < 50'000; ++i) {
    std::vector<uint8_t> packet(random() % 64);
    for (uint8_t& byte : packet) byte = static_cast<uint8_t>(random());
    if (packet.size() > 1 && i % 2) packet[0] = kMagic, packet[1] = kProtocolVersion;
    Header header;
    if (Decode(packet, header) == DecodeError::kNone) {
      EXPECT_EQ(packet.size(), kHeaderBytes + size_t{4} * header.element_count);
    }
  }
}

}  // namespace
}  // namespace passing::wire
