// A listener has heard a burst once it was handed each of its packets, whatever else it is handed.
#include <algorithm>
#include <bitset>
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "wire/probe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace passing;
  Operations input(data, size);
  const wire::ProbeName name{.job = input.Number16(), .epoch = input.Number16(), .nonce = input.Number32()};
  const auto lanes = static_cast<uint16_t>(2 + input.Number16() % (wire::kMaxLanes - 1));
  const wire::ProbeBurst burst = wire::MakeProbeBurst(name, lanes);
  const auto packets = static_cast<uint32_t>(burst.packet_bytes.size());
  EXPECT_ALWAYS(packets == wire::ProbePacketsOf(lanes) && packets <= wire::kProbePackets);

  wire::ProbeListener listener(name);
  std::bitset<wire::kProbePackets> heard;
  size_t expected = 0;  // as the last one says, which has one lane
  const auto is_whole = [&] {
    bool whole = expected > 0;
    for (size_t i = 0; i < expected; ++i) whole = whole && heard[i];
    return whole;
  };
  const auto is_of_burst = [&](const std::vector<uint8_t>& packet) {
    wire::Header header;
    return wire::Decode(packet, header) == wire::DecodeError::kNone && header.type == wire::PacketType::kProbe &&
           header.job == name.job && header.epoch == name.epoch && header.sequence == name.nonce;
  };
  const auto hand_over = [&](const std::vector<uint8_t>& packet) {
    listener.OnPacket(packet);
    const size_t slot = is_of_burst(packet) ? packet[10] << 8 | packet[11] : wire::kProbePackets;
    if (slot >= wire::kProbePackets) return;
    heard.set(slot);
    if (packet[18] == 0 && packet[19] == 1) expected = std::max(expected, slot + 1);
  };
  while (!input.empty()) {
    const uint32_t operation = input.Below(4);
    if (operation == 0) {
      const auto bytes = input.Bytes(input.Byte());
      hand_over({bytes.begin(), bytes.end()});
    } else {
      const uint32_t first = input.Below(packets);
      const uint32_t last = operation == 1 ? first : packets - 1;
      size_t at = 0;
      for (uint32_t i = 0; i <= last; at += burst.packet_bytes[i++]) {
        if (i < first) continue;
        std::vector<uint8_t> packet(&burst.bytes[at], &burst.bytes[at] + burst.packet_bytes[i]);
        EXPECT_ALWAYS(is_of_burst(packet) && packet[11] == i);
        if (operation == 2 && i == first) packet[input.Below(wire::kHeaderBytes)] ^= input.Byte();
        hand_over(packet);
      }
    }
    EXPECT_ALWAYS(listener.heard_all() == is_whole());
  }
  return 0;
}
