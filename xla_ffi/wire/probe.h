// Finds out whether a job's multicast group reaches a host: the switch sends a burst to the group, just as results will
// travel (full packets and a shorter one, together one super-packet), and a host that has heard all of it says so.
#ifndef XLA_FFI_WIRE_PROBE_H_
#define XLA_FFI_WIRE_PROBE_H_

#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/header.h"

namespace passing::wire {

// The packets of one super-packet: 43 x 1,460 + 24 bytes.
inline constexpr uint16_t kProbePackets = 44;

// Names a burst. The nonce, drawn for it, tells it from those of any other switch, job or attempt.
struct ProbeName {
  uint16_t job = 0;
  uint16_t epoch = 0;
  uint32_t nonce = 0;
};

struct ProbeBurst {
  std::vector<uint8_t> bytes;  // packets side by side
  std::vector<uint16_t> packet_bytes;
};

// kProbePackets probes: header.sequence is the nonce, header.slot the packet's index. All but the last, which carries
// one lane, carry `lanes`.
ProbeBurst MakeProbeBurst(const ProbeName& name, uint16_t lanes);

// Collects what a host has heard of a burst, which may be sent several times.
class ProbeListener {
 public:
  explicit ProbeListener(const ProbeName& name) : name_(name) {}

  void OnPacket(std::span<const uint8_t> packet);
  bool heard_all() const { return heard_.all(); }

 private:
  ProbeName name_;
  std::bitset<kProbePackets> heard_;
};

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_PROBE_H_
