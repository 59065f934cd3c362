#include "wire/probe.h"

#include <algorithm>

namespace passing::wire {
namespace {

constexpr size_t kMaxSuperPacket = 65'507;  // 65,535 - 20 IP - 8 UDP

}  // namespace

uint16_t ProbePacketsOf(uint16_t lanes) {
  const size_t full = (kMaxSuperPacket - kHeaderBytes - 4) / (kHeaderBytes + size_t{4} * lanes);
  return static_cast<uint16_t>(std::min<size_t>(full + 1, kProbePackets));
}

ProbeBurst MakeProbeBurst(const ProbeName& name, uint16_t lanes) {
  ProbeBurst burst;
  const uint16_t packets = ProbePacketsOf(lanes);
  for (uint16_t i = 0; i < packets; ++i) {
    const uint16_t count = i + 1 < packets ? lanes : 1;
    const size_t at = burst.bytes.size();
    const size_t bytes = kHeaderBytes + size_t{4} * count;
    burst.bytes.resize(at + bytes);
    Encode({.type = PacketType::kProbe,
            .job = name.job,
            .epoch = name.epoch,
            .worker = kEveryWorker,
            .slot = i,
            .sequence = name.nonce,
            .element_count = count},
           &burst.bytes[at]);
    burst.packet_bytes.push_back(static_cast<uint16_t>(bytes));
  }
  return burst;
}

std::vector<uint8_t> MakePathProbe(uint32_t nonce, uint16_t lanes) {
  std::vector<uint8_t> packet(kHeaderBytes + size_t{4} * lanes + kTagBytes);
  Encode(
      {.type = PacketType::kProbe, .worker = kEveryWorker, .sequence = nonce, .element_count = lanes, .tagged = true},
      packet.data());
  return packet;
}

std::optional<uint32_t> NonceOfPathProbe(std::span<const uint8_t> packet) {
  if (packet.size() < kHeaderBytes || packet[2] != (static_cast<uint8_t>(PacketType::kProbe) | kTagged)) return {};
  Header header;
  if (Decode(packet, header) != DecodeError::kNone || header.job != 0) return {};
  return header.sequence;
}

void ProbeListener::OnPacket(std::span<const uint8_t> packet) {
  Header header;
  if (Decode(packet, header) != DecodeError::kNone || header.type != PacketType::kProbe) return;
  if (header.job != name_.job || header.epoch != name_.epoch || header.sequence != name_.nonce) return;
  if (header.slot >= kProbePackets) return;
  heard_.set(header.slot);
  if (header.element_count == 1) packets_ = std::max<size_t>(packets_, header.slot + 1);
}

}  // namespace passing::wire
