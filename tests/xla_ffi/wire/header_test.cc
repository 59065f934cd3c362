#include "wire/header.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace passing::wire {
namespace {

std::vector<uint8_t> Packet(const Header& header) {
  std::vector<uint8_t> packet(kHeaderBytes + size_t{4} * header.element_count);
  Encode(header, packet.data());
  return packet;
}

// Pinned: another data plane must read and write exactly these bytes.
TEST(Header, encode_golden) {
  const Header header{.type = PacketType::kResult,
                      .flags = kFlagNaN | kFlagNegInf,
                      .job = 0x0102,
                      .epoch = 0x0304,
                      .worker = 0x0506,
                      .slot = 0x0708,
                      .sequence = 0x090A0B0C,
                      .version = 1,
                      .lane_format = LaneFormat::kMaxInt32,
                      .element_count = 0x0168};
  std::array<uint8_t, kHeaderBytes> bytes;
  Encode(header, bytes.data());
  const std::array<uint8_t, kHeaderBytes> golden = {0x9A, 1, 2, 5,  1,  2,  3, 4, 5, 6,
                                                    7,    8, 9, 10, 11, 12, 1, 2, 1, 0x68};
  EXPECT_EQ(bytes, golden);
}

TEST(Header, roundTrip_randomHeaders) {
  std::mt19937 random(20'250'801);
  for (int i = 0; i < 20'000; ++i) {
    Header header;
    header.type = random() % 2 ? PacketType::kContribution : PacketType::kResult;
    header.flags = random() % 8;
    header.job = static_cast<uint16_t>(random());
    header.epoch = static_cast<uint16_t>(random());
    header.worker = static_cast<uint16_t>(random());
    header.slot = static_cast<uint16_t>(random());
    header.sequence = static_cast<uint32_t>(random());
    header.version = random() % 2;
    header.lane_format = random() % 2 ? LaneFormat::kSumInt32 : LaneFormat::kMaxInt32;
    header.element_count = static_cast<uint16_t>(1 + random() % kMaxLanes);
    Header decoded;
    ASSERT_EQ(Decode(Packet(header), decoded), DecodeError::kNone);
    ASSERT_EQ(decoded, header);
  }
}

TEST(Header, decode_everyError) {
  const Header good{.element_count = 3};
  struct Case {
    const char* description;
    size_t offset;
    uint8_t value;
    DecodeError error;
  };
  const Case cases[] = {
      {"unchanged", 1, kProtocolVersion, DecodeError::kNone},
      {"another magic", 0, 0x9B, DecodeError::kBadMagic},
      {"a later protocol", 1, 2, DecodeError::kBadProtocolVersion},
      {"type 0", 2, 0, DecodeError::kBadType},
      {"type 4", 2, 4, DecodeError::kBadType},
      {"an unknown flag", 3, 8, DecodeError::kBadFlags},
      {"version 2", 16, 2, DecodeError::kBadVersion},
      {"lane format 0", 17, 0, DecodeError::kBadLaneFormat},
      {"lane format 3", 17, 3, DecodeError::kBadLaneFormat},
      {"no element", 19, 0, DecodeError::kBadElementCount},
      {"361 elements", 18, 2, DecodeError::kBadElementCount},
      {"more elements than bytes", 19, 4, DecodeError::kBadLength},
      {"fewer elements than bytes", 19, 2, DecodeError::kBadLength},
  };
  for (const Case& test : cases) {
    std::vector<uint8_t> packet = Packet(good);
    packet[test.offset] = test.value;
    Header header;
    EXPECT_EQ(Decode(packet, header), test.error) << test.description;
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

TEST(Header, sequenceBefore_wraps) {
  EXPECT_TRUE(SequenceBefore(0, 1));
  EXPECT_FALSE(SequenceBefore(1, 1));
  EXPECT_FALSE(SequenceBefore(1, 0));
  EXPECT_TRUE(SequenceBefore(0xFFFFFFFF, 0));
  EXPECT_TRUE(SequenceBefore(0xFFFFFF00, 0x100));
  EXPECT_FALSE(SequenceBefore(0x100, 0xFFFFFF00));
}

}  // namespace
}  // namespace passing::wire
