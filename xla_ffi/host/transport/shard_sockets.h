// A rank's sockets to all switches of its job.
#ifndef XLA_FFI_HOST_TRANSPORT_SHARD_SOCKETS_H_
#define XLA_FFI_HOST_TRANSPORT_SHARD_SOCKETS_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "net/driver.h"
#include "net/udp_driver.h"
#include "net/udp_socket.h"

namespace passing {

class ShardSockets {
 public:
  // `sockets`: by shard, connected to its data port. `groups`: by shard, those that hear its multicast group, if it has
  // one; may be empty. `full_packet_bytes`: of UdpDriver. `wake_fd` ends Sleep when it is readable.
  ShardSockets(std::vector<UdpSocket> sockets, std::vector<std::optional<UdpSocket>> groups, size_t full_packet_bytes,
               int wake_fd);
  ShardSockets(const ShardSockets&) = delete;  // the drivers refer to the sockets
  ShardSockets& operator=(const ShardSockets&) = delete;

  uint32_t shard_count() const { return static_cast<uint32_t>(sockets_.size()); }
  std::vector<Driver*> drivers();
  std::vector<bool> hears_group() const;  // by shard
  UdpSocketStats stats() const;
  // Frees the descriptors. Nothing is sent or received any more; the drivers are gone.
  void Close();

  // Sleeps until a packet comes (then returns true), `wake_fd` is readable, or it is `due_us`; INT64_MAX: never.
  bool Sleep(int64_t due_us);
  // The socket if the last Sleep found it readable; else null.
  UdpSocket* ReadableSocket(uint32_t shard) { return IsReadable(shard) ? &sockets_[shard] : nullptr; }
  UdpSocket* ReadableGroup(uint32_t shard) { return IsReadable(shard_count() + shard) ? &*groups_[shard] : nullptr; }

 private:
  bool IsReadable(size_t watched) const { return watched_[watched].revents != 0; }

  std::vector<UdpSocket> sockets_;
  std::vector<std::optional<UdpSocket>> groups_;
  std::vector<UdpDriver> drivers_;
  std::vector<pollfd> watched_;  // the sockets, the groups, then wake_fd
  UdpSocketStats of_closed_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_SHARD_SOCKETS_H_
