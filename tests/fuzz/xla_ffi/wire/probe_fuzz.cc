// A listener has heard a burst once it was handed each of its packets, whatever else it is handed.
#include <bitset>
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "wire/probe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace passing;
  Operations input(data, size);
  const wire::ProbeName name{.job = input.Number16(), .epoch = input.Number16(), .nonce = input.Number32()};
  const auto lanes = static_cast<uint16_t>(1 + input.Number16() % wire::kMaxLanes);
  const wire::ProbeBurst burst = wire::MakeProbeBurst(name, lanes);
  EXPECT_ALWAYS(burst.packet_bytes.size() == wire::kProbePackets);

  wire::ProbeListener listener(name);
  std::bitset<wire::kProbePackets> heard;
  const auto is_of_burst = [&](const std::vector<uint8_t>& packet) {
    wire::Header header;
    return wire::Decode(packet, header) == wire::DecodeError::kNone && header.type == wire::PacketType::kProbe &&
           header.job == name.job && header.epoch == name.epoch && header.sequence == name.nonce;
  };
  const auto hand_over = [&](const std::vector<uint8_t>& packet) {
    listener.OnPacket(packet);
    const size_t slot = is_of_burst(packet) ? packet[10] << 8 | packet[11] : wire::kProbePackets;
    if (slot < wire::kProbePackets) heard.set(slot);
  };
  while (!input.empty()) {
    const uint32_t operation = input.Below(4);
    if (operation == 0) {
      const auto bytes = input.Bytes(input.Byte());
      hand_over({bytes.begin(), bytes.end()});
    } else {
      const uint32_t first = input.Below(wire::kProbePackets);
      const uint32_t last = operation == 1 ? first : wire::kProbePackets - 1;
      size_t at = 0;
      for (uint32_t i = 0; i <= last; at += burst.packet_bytes[i++]) {
        if (i < first) continue;
        std::vector<uint8_t> packet(&burst.bytes[at], &burst.bytes[at] + burst.packet_bytes[i]);
        EXPECT_ALWAYS(is_of_burst(packet) && packet[11] == i);
        if (operation == 2 && i == first) packet[input.Below(wire::kHeaderBytes)] ^= input.Byte();
        hand_over(packet);
      }
    }
    EXPECT_ALWAYS(listener.heard_all() == heard.all());
  }
  return 0;
}
