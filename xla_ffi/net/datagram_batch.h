// Many datagrams in one system call. One send of a 64 KB super-packet costs the kernel little more than one of a
// single datagram, so nearly all throughput comes from here.
#ifndef XLA_FFI_NET_DATAGRAM_BATCH_H_
#define XLA_FFI_NET_DATAGRAM_BATCH_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "net/address.h"

namespace passing {

// Datagrams that the kernel cuts from one buffer: all `segment_bytes` long, the last may be shorter.
struct DatagramRun {
  size_t offset = 0;
  size_t bytes = 0;
  uint16_t segment_bytes = 0;
  friend bool operator==(const DatagramRun&, const DatagramRun&) = default;
};

inline constexpr size_t kMaxUdpBytes = 65'507;  // 65,535 - 20 IP - 8 UDP

// Groups datagrams that lie side by side into the longest runs that UDP_SEGMENT takes. Pure.
void GroupRuns(std::span<const uint16_t> datagram_bytes, std::vector<DatagramRun>& runs);

using OnDatagram = std::function<void(std::span<const uint8_t> datagram, const Address& source)>;

struct UdpSocketStats {
  uint64_t datagrams_unsent = 0;  // the send buffer stayed full, or the kernel refused them
  uint64_t errors_reported = 0;   // ICMP errors and the like, which a later packet may not meet

  UdpSocketStats& operator+=(const UdpSocketStats& other) {
    datagrams_unsent += other.datagrams_unsent;
    errors_reported += other.errors_reported;
    return *this;
  }
};

// Space for the control messages that we send or receive: how long the datagrams of a super-packet are, and from which
// of our own addresses it leaves (an IPv6 address and an interface).
union PacketOptions {
  char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(16 + sizeof(int))];
  cmsghdr align;
};

// Adds to a message from which of our own addresses it leaves.
void LeaveFrom(msghdr& message, PacketOptions& options, const Address& own);

// Receives from a nonblocking socket, whole super-packets where the kernel has UDP_GRO.
class BatchReceiver {
 public:
  BatchReceiver(int fd, UdpSocketStats& stats);

  // Small enough that a batch stays in the second-level cache, large enough to share the cost of a system call.
  static constexpr unsigned kBatch = 16;

  // See UdpSocket::Receive.
  size_t Receive(const OnDatagram& on_datagram, unsigned messages_max = kBatch);

  // See UdpSocket.
  void NoteOwnAddress();
  const Address& came_to() const { return came_to_; }

 private:
  static constexpr size_t kMessageBytes = 1 << 16;  // one super-packet

  void Prepare();

  const int fd_;
  UdpSocketStats& stats_;
  Address came_to_;
  // Pages of the buffer that stay untouched cost nothing.
  std::unique_ptr<uint8_t[]> buffer_{new uint8_t[kBatch * kMessageBytes]};
  std::array<mmsghdr, kBatch> messages_{};
  std::array<iovec, kBatch> parts_{};
  std::array<sockaddr_storage, kBatch> sources_{};
  std::array<PacketOptions, kBatch> options_{};
};

// Sends through a nonblocking socket, in super-packets unless the kernel has just refused one.
class BatchSender {
 public:
  BatchSender(int fd, UdpSocketStats& stats) : fd_(fd), stats_(stats) {}

  static constexpr int kWaitMs = 20;  // a 64 KB super-packet leaves a 100 Mbit/s link in 5 ms

  // See UdpSocket::Send.
  void Send(const uint8_t* bytes, std::span<const uint16_t> datagram_bytes, std::span<const Address> destinations,
            int wait_ms = kWaitMs, std::span<const Address> from = {});

  // After a refusal the next sends use single datagrams: the path's MTU may have shrunk for a while, and a kernel that
  // never segments refuses one call in a thousand.
  static constexpr uint32_t kSendsAfterRefusal = 1000;

  // See UdpSocket.
  bool segmentation() const { return !disabled_ && sends_until_retry_ == 0; }
  void DisableSegmentation() { disabled_ = true; }

 private:
  static constexpr unsigned kBatch = 32;

  void SendRuns(const uint8_t* bytes, std::span<const Address> destinations, std::span<const Address> from);
  int SendMessages(unsigned first, unsigned count);

  const int fd_;
  UdpSocketStats& stats_;
  bool disabled_ = false;
  uint32_t sends_until_retry_ = 0;
  int wait_ms_ = kWaitMs;
  std::vector<DatagramRun> runs_;
  std::array<mmsghdr, kBatch> messages_{};
  std::array<iovec, kBatch> parts_{};
  std::array<PacketOptions, kBatch> options_{};
};

}  // namespace passing

#endif  // XLA_FFI_NET_DATAGRAM_BATCH_H_
