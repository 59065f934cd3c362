// A switch behind a UDP port: the software data plane. It has the sockets and the thread of a SwitchCore.
#ifndef XLA_FFI_SWITCH_UDP_SWITCH_H_
#define XLA_FFI_SWITCH_UDP_SWITCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "net/udp_socket.h"
#include "switch/fair_turns.h"
#include "switch/job_queues.h"
#include "switch/switch_core.h"
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
  uint64_t paths_probed = 0;        // probes of paths that were sent back
  UdpSocketStats socket;
};

// The sockets between a job and its parent. `socket` is connected to the parent's address: contributions go up and
// results come down by it. `group` hears the results that the parent sends once for all its workers, if it does.
struct Uplink {
  UdpSocket socket;
  std::optional<UdpSocket> group = std::nullopt;
};

class UdpSwitch {
 public:
  // Binds host:port (port 0: any) and serves it on a thread of its own. Throws std::system_error.
  UdpSwitch(const std::string& host, uint16_t port, uint32_t slot_count);
  ~UdpSwitch();  // Close
  UdpSwitch(const UdpSwitch&) = delete;
  UdpSwitch& operator=(const UdpSwitch&) = delete;

  uint16_t port() const { return port_; }
  // These may be called from any thread, and take effect before they return. Without a group each worker is sent its
  // own results. A job with a parent needs an uplink, whose peer is the parent's address. `own_addresses`: by which
  // each worker knows us, as it takes packets from no other; empty: the kernel chooses. `ports_apart`: see ResultWays.
  // Throws std::invalid_argument, or std::system_error if the uplink can't be watched; then nothing has changed.
  void AddJob(const JobSlots& job, std::optional<MulticastGroup> group = std::nullopt,
              std::optional<Uplink> uplink = std::nullopt, std::vector<Address> own_addresses = {},
              bool ports_apart = false);
  void StopMulticast(uint16_t job);
  void RemoveJob(uint16_t job);
  // Sends a burst to a group that hosts have joined. Throws std::system_error if that address isn't ours.
  void Probe(const MulticastGroup& group, const wire::ProbeName& name, uint16_t lanes);
  // Probes of paths are sent back to a host that was told this number, and to no other address.
  uint32_t PathNonce(const Address& host) const;
  // False once the results of this job's parent, which it sends to a group, come only because we ask again.
  bool HearsParentsGroup(uint16_t job) const;
  SlotVersion VersionOf(uint32_t slot, uint8_t version) const;
  // See SlotPool::CountsOf. Packets that are received together have one time.
  std::optional<JobCounts> CountsOf(uint16_t job);
  UdpSwitchStats stats() const;
  // See JobQueues::Overflows.
  std::map<uint16_t, uint64_t> Overflows() const;
  void Close();

 private:
  class Descriptor {
   public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }

   private:
    const int fd_;
  };

  // A descriptor that epoll watches. It travels in the 64 bits of an epoll event's user data.
  struct Source {
    enum Kind : uint32_t { kStop, kQueue, kUplink, kUplinkGroup } kind;
    uint32_t number = 0;  // of the queue, or of the uplink's job
  };

  // The sockets that a job's packets pass.
  struct Sockets {
    size_t queue;
    std::optional<Uplink> uplink;
  };

  void Watch(int fd, Source source);

  // The methods from here on are called with mutex_ held, but Serve.
  void CloseSockets(uint16_t job);  // of the uplink, so that epoll forgets them
  void Serve();
  // Receives one batch from the readable source whose job has used the least time so far.
  void ServeNext();
  // The queue whose time it takes to serve this source.
  size_t QueueOf(const Source& source) const;
  // Null if the job was removed meanwhile.
  UdpSocket* SocketOf(const Source& source);
  void Send(const Outgoing& out);

  const std::array<uint64_t, 2> path_secret_;
  const Descriptor epoll_;
  const Descriptor stop_;
  mutable std::mutex mutex_;  // the thread holds it for one batch of packets
  JobQueues queues_;
  const uint16_t port_;
  FairTurns turns_;  // by queue
  SwitchCore core_;
  std::unordered_map<uint16_t, Sockets> sockets_;  // by job
  UdpSwitchStats stats_;
  std::vector<Source> readable_;  // as epoll reported them last; the thread's alone
  std::vector<size_t> readable_queues_;
  std::mutex close_mutex_;
  std::thread thread_;
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_UDP_SWITCH_H_
