// A UDP socket that sends and receives many datagrams at a time. One send of a 64 KB super-packet costs the
// kernel little more than one of a single datagram, so nearly all throughput comes from here.
#ifndef XLA_FFI_NET_UDP_SOCKET_H_
#define XLA_FFI_NET_UDP_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/address.h"

namespace passing {

// Resolves a host name or a literal to the first address found. Throws std::system_error.
Address ResolveAddress(const std::string& host, uint16_t port);

// The same of a literal alone: a name, which somebody else may have given, would make the caller wait for DNS.
Address NumericAddress(const std::string& host, uint16_t port);

// Datagrams that the kernel cuts from one buffer: all `segment_bytes` long, the last may be shorter.
struct DatagramRun {
  size_t offset = 0;
  size_t bytes = 0;
  uint16_t segment_bytes = 0;
  friend bool operator==(const DatagramRun&, const DatagramRun&) = default;
};

// Groups datagrams that lie side by side into the longest runs that UDP_SEGMENT takes. Pure.
void GroupRuns(std::span<const uint16_t> datagram_bytes, std::vector<DatagramRun>& runs);

struct UdpSocketStats {
  uint64_t datagrams_unsent = 0;  // the send buffer stayed full, or the kernel refused them
  uint64_t errors_reported = 0;   // ICMP errors and the like, which a later packet may not meet
};

class UdpSocket {
 public:
  using OnDatagram = std::function<void(std::span<const uint8_t> datagram, const Address& source)>;

  // Nonblocking, with buffers as large as the system allows. All throw std::system_error.
  static UdpSocket BoundTo(const std::string& host, uint16_t port);      // port 0: any
  static UdpSocket ConnectedTo(const std::string& host, uint16_t port);  // from any port
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
  // Returns how many there were; 0 if none.
  size_t Receive(const OnDatagram& on_datagram);

  // Sends datagrams that lie side by side in `bytes` to each destination; without one, to the connected peer.
  // Waits up to 20 ms while the send buffer is full, then drops the rest, as any network may.
  void Send(const uint8_t* bytes, std::span<const uint16_t> datagram_bytes, std::span<const Address> destinations = {});

  // From which of our IPv4 addresses, and so through which interface, datagrams to multicast groups leave. They reach
  // no further than the next router. False if we have no such address.
  bool MulticastFrom(const Address& own);

  const UdpSocketStats& stats() const;
  // Whether UDP_SEGMENT is in use; turned off for good by the first refusal.
  bool segmentation() const;
  void DisableSegmentation();

 private:
  struct Impl;
  explicit UdpSocket(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace passing

#endif  // XLA_FFI_NET_UDP_SOCKET_H_
