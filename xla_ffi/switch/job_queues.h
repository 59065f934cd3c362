// The sockets at the switch's port: one for each job, so that one job's overload drops only its own packets.
#ifndef XLA_FFI_SWITCH_JOB_QUEUES_H_
#define XLA_FFI_SWITCH_JOB_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "net/address.h"
#include "net/udp_socket.h"

namespace passing {

// The kernel reads the job in a packet's header, and over IPv4 its source, and puts the packet into that job's socket
// (SO_ATTACH_REUSEPORT_CBPF). A packet of no job, or from none of the job's workers, goes to the first socket. Where
// the kernel can't do that, all packets go there.
class JobQueues {
 public:
  static constexpr size_t kOther = 0;  // the queue of packets that belong to no job
  // The most queues of jobs; more jobs than these share them. Each queue is a descriptor, and up to 8 MiB of the
  // kernel's memory each way.
  static constexpr size_t kMaxQueues = 64;

  // Called with each socket that is opened, and its number. If it throws std::system_error, the socket is given up.
  using OnOpened = std::function<void(const UdpSocket& socket, size_t queue)>;

  // Throws std::system_error. Port 0: any.
  JobQueues(const std::string& host, uint16_t port, OnOpened on_opened);

  // Gives a job a queue: the number of a new or an unused one. `workers`: as this socket's family writes addresses.
  size_t Take(uint16_t job, const std::vector<Address>& workers);
  void Return(uint16_t job);

  UdpSocket& socket(size_t queue) { return sockets_[queue]; }
  const UdpSocket& socket(size_t queue) const { return sockets_[queue]; }
  size_t size() const { return sockets_.size(); }
  bool is_shared() const { return jobs_.size() > 1; }  // by several jobs

  // Packets that a queue has lost since the start, because they came faster than they were handled.
  uint32_t Drops(size_t queue) const;
  // The same for each job since it took its queue; number 0 stands for packets of no job.
  std::map<uint16_t, uint64_t> Overflows() const;

 private:
  struct Job {
    size_t queue = kOther;
    uint32_t drops_before = 0;
    std::vector<uint32_t> sources{};  // IPv4 addresses of its workers; none if any of them has another kind
  };

  std::optional<size_t> OpenAnother();
  void Steer();

  const OnOpened on_opened_;
  std::vector<UdpSocket> sockets_;  // in the order in which the kernel counts them
  std::map<uint16_t, Job> jobs_;
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_JOB_QUEUES_H_
