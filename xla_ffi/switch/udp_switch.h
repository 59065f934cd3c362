// A slot pool behind a UDP port: the software data plane.
#ifndef XLA_FFI_SWITCH_UDP_SWITCH_H_
#define XLA_FFI_SWITCH_UDP_SWITCH_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "net/udp_socket.h"
#include "switch/slot_pool.h"
#include "wire/probe.h"

namespace passing {

struct UdpSwitchStats {
  std::array<uint64_t, kVerdictCount> verdicts{};
  uint64_t packets_received = 0;
  uint64_t bytes_received = 0;
  uint64_t packets_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t packets_overflowed = 0;  // lost because they came faster than they were handled
  uint64_t results_multicast = 0;   // results sent once for all workers
  UdpSocketStats socket;
};

// Where results are sent once for all workers of a job, and from which of our addresses.
struct MulticastGroup {
  Address group;
  Address from;
};

// The way to a job's parent, connected to its address: contributions go up and results come down by `socket`, those
// sent once for all by `group`, if it has one.
struct Uplink {
  UdpSocket socket;
  std::optional<UdpSocket> group = std::nullopt;
};

class UdpSwitch {
 public:
  // Binds host:port (port 0: any) and serves it on a thread of its own. Throws std::system_error.
  UdpSwitch(const std::string& host, uint16_t port, uint32_t slot_count);
  ~UdpSwitch();  // Close

  uint16_t port() const;
  // From any thread; these take effect before they return. Without a group each worker is sent its own results. A job
  // with a parent needs an uplink, whose peer is the parent's address. Throws std::invalid_argument, or
  // std::system_error if the uplink can't be listened to; then nothing has changed.
  void AddJob(const JobSlots& job, const std::optional<MulticastGroup>& group = std::nullopt,
              std::optional<Uplink> uplink = std::nullopt);
  void StopMulticast(uint16_t job);
  void RemoveJob(uint16_t job);
  // Sends a burst to a group that hosts have joined. Throws std::system_error if that address isn't ours.
  void Probe(const MulticastGroup& group, const wire::ProbeName& name, uint16_t lanes);
  // False once the results of this job's parent, which it sends to a group, come only because we ask again.
  bool HearsParentsGroup(uint16_t job) const;
  SlotVersion VersionOf(uint32_t slot, uint8_t version) const;
  UdpSwitchStats stats() const;
  // As JobQueues::Overflows.
  std::map<uint16_t, uint64_t> Overflows() const;
  void Close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_UDP_SWITCH_H_
