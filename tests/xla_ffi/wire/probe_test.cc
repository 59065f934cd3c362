#include "wire/probe.h"

#include <gtest/gtest.h>

namespace passing::wire {
namespace {

constexpr ProbeName kName = {.job = 7, .epoch = 3, .nonce = 0xFEDCBA98};

std::vector<std::span<const uint8_t>> Packets(const ProbeBurst& burst) {
  std::vector<std::span<const uint8_t>> packets;
  size_t at = 0;
  for (const uint16_t bytes : burst.packet_bytes) {
    packets.push_back(std::span(burst.bytes).subspan(at, bytes));
    at += bytes;
  }
  EXPECT_EQ(at, burst.bytes.size());
  return packets;
}

TEST(Probe, burst_fullPacketsAndAShortOne) {
  for (const auto& [lanes, packets] : {std::pair(3u, 44u), std::pair(360u, 44u), std::pair(kMaxLanes, 8u)}) {
    const ProbeBurst burst = MakeProbeBurst(kName, static_cast<uint16_t>(lanes));
    EXPECT_LE(burst.bytes.size(), 65'507u);  // one super-packet
    ASSERT_EQ(burst.packet_bytes.size(), packets);
    for (uint16_t i = 0; i < packets; ++i) {
      EXPECT_EQ(burst.packet_bytes[i], i + 1u < packets ? kHeaderBytes + 4 * size_t{lanes} : kHeaderBytes + 4);
    }
  }
}

TEST(Probe, pathProbe_hasTheLengthOfAPacketWithATag) {
  const std::vector<uint8_t> probe = MakePathProbe(0xFEDCBA98, 360);
  EXPECT_EQ(probe.size(), kPacketBytesAtMtu1500);
  EXPECT_EQ(NonceOfPathProbe(probe), 0xFEDCBA98);
  EXPECT_EQ(NonceOfPathProbe(std::span(probe).first(probe.size() - 1)), std::nullopt);
  for (const auto& [at, value] : {std::pair(2, 0x81), {2, 3}, {5, 1}}) {  // a contribution, without a tag, of a job
    std::vector<uint8_t> other = probe;
    other[at] = static_cast<uint8_t>(value);
    EXPECT_EQ(NonceOfPathProbe(other), std::nullopt);
  }
  EXPECT_EQ(NonceOfPathProbe({}), std::nullopt);
}

TEST(Probe, listener_hearsTheBurstOverSeveralLossyAttempts) {
  ProbeListener listener(kName);
  const ProbeBurst burst = MakeProbeBurst(kName, 64);
  const auto packets = Packets(burst);
  for (size_t i = 0; i < packets.size(); ++i) {
    if (i % 3 != 0) listener.OnPacket(packets[i]);
  }
  EXPECT_FALSE(listener.heard_all());
  for (size_t i = packets.size(); i-- > 0;) {
    if (i % 3 != 1) listener.OnPacket(packets[i]);
  }
  EXPECT_TRUE(listener.heard_all());
}

TEST(Probe, listener_fullPacketsAloneAreNotEnough) {
  ProbeListener listener(kName);
  const ProbeBurst burst = MakeProbeBurst(kName, kMaxLanes);
  const auto packets = Packets(burst);
  for (size_t i = 0; i + 1 < packets.size(); ++i) listener.OnPacket(packets[i]);
  EXPECT_FALSE(listener.heard_all());
  listener.OnPacket(packets.back());
  EXPECT_TRUE(listener.heard_all());
}

TEST(Probe, listener_ignoresOthers) {
  ProbeListener listener(kName);
  for (const ProbeName& other : {ProbeName{8, 3, kName.nonce}, ProbeName{7, 4, kName.nonce}, ProbeName{7, 3, 1}}) {
    const ProbeBurst burst = MakeProbeBurst(other, 64);
    for (const auto packet : Packets(burst)) listener.OnPacket(packet);
  }
  const ProbeBurst burst = MakeProbeBurst(kName, 64);
  for (const auto packet : Packets(burst)) {
    std::vector<uint8_t> changed(packet.begin(), packet.end());
    changed[2] = static_cast<uint8_t>(PacketType::kResult);
    listener.OnPacket(changed);
    changed[2] = static_cast<uint8_t>(PacketType::kProbe);
    changed[10] = 0xFF;  // an index that no burst has
    listener.OnPacket(changed);
    listener.OnPacket(packet.first(packet.size() - 1));
  }
  listener.OnPacket({});
  EXPECT_FALSE(listener.heard_all());
}

}  // namespace
}  // namespace passing::wire
