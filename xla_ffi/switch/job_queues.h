// The sockets at the switch's port: one for each job, so that a job whose packets are too many loses its own only.
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

// The kernel reads the job in a packet's header, and over IPv4 its source, and puts the packet into the socket of that
// job (SO_ATTACH_REUSEPORT_CBPF). What is no job's, or comes from none of its workers, goes to the first socket. Where
// the kernel can't do that, everything does.
class JobQueues {
 public:
  static constexpr size_t kOther = 0;  // the queue of what is no job's
  // Of jobs; more than these share them. Each queue is a descriptor, and up to 8 MiB of the kernel's memory each way.
  static constexpr size_t kMaxQueues = 64;

  // Is told of each socket that is opened, with its number. If it throws std::system_error, there is no such socket.
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
  // The same of each job since it took its queue; under number 0, of no job.
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
