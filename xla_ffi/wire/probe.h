// Finds out whether a job's multicast group reaches a host: the switch sends a burst to the group, just as results will
// travel (full packets and a shorter one, together one super-packet), and a host that has heard all of it says so.
#ifndef XLA_FFI_WIRE_PROBE_H_
#define XLA_FFI_WIRE_PROBE_H_

#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "wire/header.h"

namespace passing::wire {

// The most packets of one super-packet: 43 x 1,460 + 24 bytes.
inline constexpr uint16_t kProbePackets = 44;

// The number of probes in a burst: fewer where packets are longer, so that they are one super-packet.
uint16_t ProbePacketsOf(uint16_t lanes);

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

// Makes the probes: header.sequence is the nonce, header.slot the packet's index. All but the last, which carries one
// lane, carry `lanes`, more than one.
ProbeBurst MakeProbeBurst(const ProbeName& name, uint16_t lanes);

// Makes a probe of the path between a host and a switch, which sends it back: do packets so long pass both ways, uncut?
// It belongs to no job, and is as long as one of so many lanes with a tag.
std::vector<uint8_t> MakePathProbe(uint32_t nonce, uint16_t lanes);
// Returns its nonce if this is one.
std::optional<uint32_t> NonceOfPathProbe(std::span<const uint8_t> packet);

// Collects what a host has heard of a burst, which may be sent several times.
class ProbeListener {
 public:
  explicit ProbeListener(const ProbeName& name) : name_(name) {}

  void OnPacket(std::span<const uint8_t> packet);
  bool heard_all() const { return packets_ != 0 && (heard_ << (kProbePackets - packets_)).count() == packets_; }

 private:
  ProbeName name_;
  size_t packets_ = 0;  // of the burst: the last one tells
  std::bitset<kProbePackets> heard_;
};

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_PROBE_H_
