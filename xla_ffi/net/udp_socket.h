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
  UdpSocket AtSameAddress() const;
  // A socket with the address and port of this connected one, connected to another port of its peer.
  UdpSocket ToPort(uint16_t port) const;
  // A socket, only to receive from, that hears what the peer of this connected socket sends to an IPv4 multicast group,
  // on the interface that leads to the peer. Other processes of this machine may join the group, too.
  UdpSocket JoinGroup(const Address& group) const;

  UdpSocket(UdpSocket&& other) noexcept;
  UdpSocket& operator=(UdpSocket&& other) noexcept;
  ~UdpSocket();

  int fd() const;
  uint16_t port() const;  // our own
  Address Peer() const;   // the socket must be connected. Throws std::system_error
  // The same address as this socket's family writes it (IPv4 is mapped on an IPv6 socket).
  Address Native(const Address& address) const;

  // Hands over what has arrived, at most one batch of datagrams, each valid during its call. Never waits.
  // Returns how many there were; 0 if none. `messages_max`: how many super-packets make a batch.
  size_t Receive(const OnDatagram& on_datagram, unsigned messages_max = BatchReceiver::kBatch);

  // Sends datagrams that lie side by side in `bytes` to each destination; without one, to the connected peer.
  // Waits while the send buffer is full, for so long, then drops the rest, as any network may. `from`: for each
  // destination, which of our own addresses they leave from, as Native; without, the kernel chooses.
  void Send(const uint8_t* bytes, std::span<const uint16_t> datagram_bytes, std::span<const Address> destinations = {},
            int wait_ms = BatchSender::kWaitMs, std::span<const Address> from = {});

  // The longest packet of IP that the path to the connected peer carries, as far as the kernel knows; with its own
  // headers, of IP and UDP, of so many bytes.
  struct PathMtu {
    size_t bytes;
    size_t header_bytes;
  };
  PathMtu path_mtu() const;
  // Sends one datagram that nobody may cut into fragments, to the connected peer unless to `to`. It may be lost.
  // `from`: which of our own addresses it leaves from; empty: the kernel chooses.
  void SendUncut(std::span<const uint8_t> datagram, const Address* to = nullptr, const Address& from = {}) const;

  // Has Receive find out at which of our own addresses a datagram comes.
  void NoteOwnAddress();
  // That of the datagram which Receive hands over; empty if it isn't known.
  const Address& came_to() const;

  // Sets which of our IPv4 addresses datagrams to multicast groups leave from, and so the interface. They reach no
  // further than the next router. Returns false if we have no such address.
  bool MulticastFrom(const Address& own);

  const UdpSocketStats& stats() const;
  // Is UDP_SEGMENT in use? A refusal turns it off for BatchSender::kSendsAfterRefusal sends. Tests look at it, and turn
  // it off for good to see what a kernel without it would do.
  bool segmentation() const;
  void DisableSegmentation();

 private:
  struct Impl;
  explicit UdpSocket(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace passing

#endif  // XLA_FFI_NET_UDP_SOCKET_H_
