// A UDP socket, bound or connected or in a multicast group, that sends and receives many datagrams at a time.
#ifndef XLA_FFI_NET_UDP_SOCKET_H_
#define XLA_FFI_NET_UDP_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "net/address.h"
#include "net/datagram_batch.h"

namespace passing {

class UdpSocket {
 public:
  // Nonblocking, with buffers as large as the system allows. All throw std::system_error.
  static UdpSocket BoundTo(const std::string& host, uint16_t port);      // port 0: any
  static UdpSocket ConnectedTo(const std::string& host, uint16_t port);  // from any port
  // Another socket at the address and port of this bound one. The kernel gives each datagram that arrives to one of
  // them, and a datagram that leaves looks the same from all. A program of the same user may take part as well.
  UdpSocket Beside() const;
  // What the peer of this connected socket sends to an IPv4 multicast group, on the interface that leads to the peer.
  // Others may join the group in other processes of this machine. To receive from only.
  UdpSocket JoinGroup(const Address& group) const;

  UdpSocket(UdpSocket&& other) noexcept;
  UdpSocket& operator=(UdpSocket&& other) noexcept;
  ~UdpSocket();

  int fd() const;
  uint16_t port() const;  // our own
  Address Peer() const;   // of a connected socket. Throws std::system_error
  // The same address as this socket's family writes it (IPv4 is mapped on an IPv6 socket).
  Address Native(const Address& address) const;

  // Hands over what has arrived, at most one batch of datagrams, each valid during its call. Never waits.
  // Returns how many there were; 0 if none. `messages_max`: how many super-packets make a batch.
  size_t Receive(const OnDatagram& on_datagram, unsigned messages_max = BatchReceiver::kBatch);

  // Sends datagrams that lie side by side in `bytes` to each destination; without one, to the connected peer.
  // Waits while the send buffer is full, for so long, then drops the rest, as any network may.
  void Send(const uint8_t* bytes, std::span<const uint16_t> datagram_bytes, std::span<const Address> destinations = {},
            int wait_ms = BatchSender::kWaitMs);

  // From which of our IPv4 addresses, and so through which interface, datagrams to multicast groups leave. They reach
  // no further than the next router. False if we have no such address.
  bool MulticastFrom(const Address& own);

  const UdpSocketStats& stats() const;
  // Whether UDP_SEGMENT is in use; turned off for good by the first refusal. Tests look at it, and turn it off to see
  // what a kernel without it would do.
  bool segmentation() const;
  void DisableSegmentation();

 private:
  struct Impl;
  explicit UdpSocket(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace passing

#endif  // XLA_FFI_NET_UDP_SOCKET_H_
