#include "wire/probe.h"

namespace passing::wire {

ProbeBurst MakeProbeBurst(const ProbeName& name, uint16_t lanes) {
  ProbeBurst burst;
  for (uint16_t i = 0; i < kProbePackets; ++i) {
    const uint16_t count = i + 1 < kProbePackets ? lanes : 1;
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

void ProbeListener::OnPacket(std::span<const uint8_t> packet) {
  Header header;
  if (Decode(packet, header) != DecodeError::kNone || header.type != PacketType::kProbe) return;
  if (header.job != name_.job || header.epoch != name_.epoch || header.sequence != name_.nonce) return;
  if (header.slot < kProbePackets) heard_.set(header.slot);
}

}  // namespace passing::wire
