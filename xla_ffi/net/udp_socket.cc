#include "net/udp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <system_error>

// Older libc headers lack these two of Linux.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace passing {
namespace {

constexpr size_t kMaxSegments = 64;        // UDP_MAX_SEGMENTS of the kernel
constexpr size_t kMaxUdpBytes = 65'507;    // 65,535 - 20 IP - 8 UDP
constexpr size_t kReceiveBytes = 1 << 16;  // one super-packet
// Small enough that a batch stays in the second-level cache, large enough to share the cost of a system call.
constexpr unsigned kReceiveBatch = 16;
constexpr unsigned kSendBatch = 32;
// Holds the whole window of 64 ranks. The kernel doubles what is asked for.
constexpr int kSocketBufferBytes = 4 << 20;
constexpr int kSendWaitMs = 20;  // a 64 KB super-packet leaves a 100 Mbit/s link in 5 ms

[[noreturn]] void ThrowErrno(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

// Only the fields that tell two peers apart, so that equal addresses have equal bytes.
Address FromSockaddr(const sockaddr_storage& from) {
  Address address;
  if (from.ss_family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = reinterpret_cast<const sockaddr_in&>(from).sin_port;
    in.sin_addr = reinterpret_cast<const sockaddr_in&>(from).sin_addr;
    std::memcpy(address.bytes.data(), &in, sizeof in);
    address.size = sizeof in;
  } else if (from.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = reinterpret_cast<const sockaddr_in6&>(from).sin6_port;
    in.sin6_addr = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
    in.sin6_scope_id = reinterpret_cast<const sockaddr_in6&>(from).sin6_scope_id;
    std::memcpy(address.bytes.data(), &in, sizeof in);
    address.size = sizeof in;
  }
  return address;
}

sa_family_t Family(const Address& address) {
  sa_family_t family;
  static_assert(offsetof(sockaddr, sa_family) == 0);
  std::memcpy(&family, address.bytes.data(), sizeof family);
  return family;
}

const sockaddr* AsSockaddr(const Address& address) { return reinterpret_cast<const sockaddr*>(address.bytes.data()); }

void EnlargeBuffer(int fd, int forced_option, int option) {
  const int bytes = kSocketBufferBytes;
  if (setsockopt(fd, SOL_SOCKET, forced_option, &bytes, sizeof bytes) == 0) return;  // needs CAP_NET_ADMIN
  setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes);                          // capped by the system's limit
}

int OpenSocket(sa_family_t family) {
  const int fd = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) ThrowErrno("socket");
  EnlargeBuffer(fd, SO_RCVBUFFORCE, SO_RCVBUF);
  EnlargeBuffer(fd, SO_SNDBUFFORCE, SO_SNDBUF);
  const int on = 1;
  setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);  // kernels before 5.0 deliver datagrams one by one
  const int off = 0;
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);  // serve IPv4 as well
  return fd;
}

// A pending error of an earlier packet (ICMP), not of this call.
bool ReportsEarlierPacket(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN ||
         error == ENETDOWN || error == ENOPROTOOPT || error == EPROTO;
}

bool RefusesSegmentation(int error) {
  return error == EIO || error == EINVAL || error == ENOPROTOOPT || error == EOPNOTSUPP || error == EMSGSIZE;
}

Address FirstAddress(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    const int code = error == EAI_SYSTEM ? errno : EADDRNOTAVAIL;
    throw std::system_error(code, std::generic_category(), "can't resolve " + host + ": " + gai_strerror(error));
  }
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, std::min<size_t>(found->ai_addrlen, sizeof storage));
  freeaddrinfo(found);
  return FromSockaddr(storage);
}

}  // namespace

Address ResolveAddress(const std::string& host, uint16_t port) { return FirstAddress(host, port, 0); }

Address NumericAddress(const std::string& host, uint16_t port) { return FirstAddress(host, port, AI_NUMERICHOST); }

void GroupRuns(std::span<const uint16_t> datagram_bytes, std::vector<DatagramRun>& runs) {
  runs.clear();
  size_t offset = 0;
  size_t segments = 0;
  bool open = false;  // may the last run grow?
  for (const uint16_t bytes : datagram_bytes) {
    if (open && segments < kMaxSegments && bytes <= runs.back().segment_bytes &&
        runs.back().bytes + bytes <= kMaxUdpBytes) {
      runs.back().bytes += bytes;
      ++segments;
      open = bytes == runs.back().segment_bytes;  // a shorter datagram can only be the last
    } else {
      runs.push_back({.offset = offset, .bytes = bytes, .segment_bytes = bytes});
      segments = 1;
      open = true;
    }
    offset += bytes;
  }
}

struct UdpSocket::Impl {
  explicit Impl(int fd_in) : fd(fd_in) {}
  ~Impl() { close(fd); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void PrepareReceive();
  void SendRuns(const uint8_t* bytes, std::span<const Address> destinations);
  int SendMessages(unsigned first, unsigned count);

  const int fd;
  sa_family_t family = AF_INET;
  uint16_t port = 0;
  bool segmentation = true;
  Address multicast_from;
  UdpSocketStats stats;

  union Control {
    char bytes[CMSG_SPACE(sizeof(int))];
    cmsghdr align;
  };
  // Receiving. Pages of the buffers that stay untouched cost nothing.
  std::unique_ptr<uint8_t[]> receive_buffer{new uint8_t[kReceiveBatch * kReceiveBytes]};
  std::array<mmsghdr, kReceiveBatch> received{};
  std::array<iovec, kReceiveBatch> receive_parts{};
  std::array<sockaddr_storage, kReceiveBatch> sources{};
  std::array<Control, kReceiveBatch> receive_controls{};

  // Sending.
  std::vector<DatagramRun> runs;
  std::array<mmsghdr, kSendBatch> to_send{};
  std::array<iovec, kSendBatch> send_parts{};
  std::array<Control, kSendBatch> send_controls{};
};

UdpSocket::UdpSocket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (getsockname(impl_->fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) ThrowErrno("getsockname");
  impl_->family = own.ss_family;
  impl_->port = ntohs(own.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(own).sin_port
                                               : reinterpret_cast<sockaddr_in6&>(own).sin6_port);
}

UdpSocket UdpSocket::BoundTo(const std::string& host, uint16_t port) {
  const Address address = ResolveAddress(host, port);
  auto impl = std::make_unique<Impl>(OpenSocket(Family(address)));
  if (bind(impl->fd, AsSockaddr(address), address.size) != 0) ThrowErrno("bind " + host + ":" + std::to_string(port));
  return UdpSocket(std::move(impl));
}

UdpSocket UdpSocket::ConnectedTo(const std::string& host, uint16_t port) {
  const Address address = ResolveAddress(host, port);
  auto impl = std::make_unique<Impl>(OpenSocket(Family(address)));
  if (connect(impl->fd, AsSockaddr(address), address.size) != 0) {
    ThrowErrno("connect " + host + ":" + std::to_string(port));
  }
  return UdpSocket(std::move(impl));
}

UdpSocket UdpSocket::JoinGroup(const Address& group) const {
  if (impl_->family != AF_INET || Family(group) != AF_INET) {
    throw std::system_error(EAFNOSUPPORT, std::generic_category(), "results come by multicast over IPv4 only");
  }
  sockaddr_in own{}, peer{}, to;
  socklen_t size = sizeof own;
  if (getsockname(impl_->fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) ThrowErrno("getsockname");
  size = sizeof peer;
  if (getpeername(impl_->fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) ThrowErrno("getpeername");
  std::memcpy(&to, group.bytes.data(), sizeof to);

  auto impl = std::make_unique<Impl>(OpenSocket(AF_INET));
  const int on = 1, off = 0;
  if (setsockopt(impl->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) ThrowErrno("SO_REUSEADDR");
  // Not what other sockets of this machine joined on other interfaces.
  if (setsockopt(impl->fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off) != 0) ThrowErrno("IP_MULTICAST_ALL");
  if (bind(impl->fd, AsSockaddr(group), group.size) != 0) ThrowErrno("bind to the group");
  // The kernel drops what others send to the group.
  if (connect(impl->fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) != 0) ThrowErrno("connect");
  const ip_mreqn membership{.imr_multiaddr = to.sin_addr, .imr_address = own.sin_addr, .imr_ifindex = 0};
  if (setsockopt(impl->fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership) != 0) {
    ThrowErrno("IP_ADD_MEMBERSHIP");
  }
  return UdpSocket(std::move(impl));
}

UdpSocket::UdpSocket(UdpSocket&& other) noexcept = default;
UdpSocket& UdpSocket::operator=(UdpSocket&& other) noexcept = default;
UdpSocket::~UdpSocket() = default;

int UdpSocket::fd() const { return impl_->fd; }
uint16_t UdpSocket::port() const { return impl_->port; }
const UdpSocketStats& UdpSocket::stats() const { return impl_->stats; }
bool UdpSocket::segmentation() const { return impl_->segmentation; }

Address UdpSocket::Peer() const {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(impl_->fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) ThrowErrno("getpeername");
  return FromSockaddr(peer);
}

void UdpSocket::DisableSegmentation() { impl_->segmentation = false; }

Address UdpSocket::Native(const Address& address) const {
  if (impl_->family != AF_INET6 || Family(address) != AF_INET) return address;
  sockaddr_in from;
  std::memcpy(&from, address.bytes.data(), sizeof from);
  sockaddr_in6 mapped{};  // ::ffff:a.b.c.d
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = from.sin_port;
  mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xFF;
  std::memcpy(&mapped.sin6_addr.s6_addr[12], &from.sin_addr, 4);
  Address native;
  std::memcpy(native.bytes.data(), &mapped, sizeof mapped);
  native.size = sizeof mapped;
  return native;
}

bool UdpSocket::MulticastFrom(const Address& own) {
  if (impl_->multicast_from == own) return true;
  if (Family(own) != AF_INET) return false;
  sockaddr_in from;
  std::memcpy(&from, own.bytes.data(), sizeof from);
  const ip_mreqn interface { .imr_multiaddr = {}, .imr_address = from.sin_addr, .imr_ifindex = 0 };
  if (setsockopt(impl_->fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface) != 0) return false;
  impl_->multicast_from = own;
  return true;
}

void UdpSocket::Impl::PrepareReceive() {
  for (unsigned i = 0; i < kReceiveBatch; ++i) {
    receive_parts[i] = {.iov_base = receive_buffer.get() + i * kReceiveBytes, .iov_len = kReceiveBytes};
    msghdr& message = received[i].msg_hdr;
    message = {};
    message.msg_name = &sources[i];
    message.msg_namelen = sizeof sources[i];
    message.msg_iov = &receive_parts[i];
    message.msg_iovlen = 1;
    message.msg_control = receive_controls[i].bytes;
    message.msg_controllen = sizeof receive_controls[i].bytes;
  }
}

size_t UdpSocket::Receive(const OnDatagram& on_datagram) {
  Impl& io = *impl_;
  io.PrepareReceive();
  int count = recvmmsg(io.fd, io.received.data(), kReceiveBatch, MSG_DONTWAIT, nullptr);
  if (count < 0 && ReportsEarlierPacket(errno)) {
    ++io.stats.errors_reported;  // reading it cleared it, so this time we get what has arrived
    count = recvmmsg(io.fd, io.received.data(), kReceiveBatch, MSG_DONTWAIT, nullptr);
  }
  size_t datagrams = 0;
  for (int i = 0; i < count; ++i) {
    msghdr& message = io.received[i].msg_hdr;
    if ((message.msg_flags & MSG_TRUNC) != 0) continue;  // larger than any of ours
    const size_t bytes = io.received[i].msg_len;
    size_t segment_bytes = bytes;  // without GRO: one datagram
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != IPPROTO_UDP || part->cmsg_type != UDP_GRO) continue;
      int value;
      std::memcpy(&value, CMSG_DATA(part), sizeof value);
      if (value > 0) segment_bytes = static_cast<size_t>(value);
    }
    const Address source = FromSockaddr(io.sources[i]);
    const uint8_t* data = static_cast<const uint8_t*>(io.receive_parts[i].iov_base);
    size_t at = 0;
    do {  // at least once: a datagram may be empty
      const size_t part_bytes = std::min(segment_bytes, bytes - at);
      on_datagram({data + at, part_bytes}, source);
      ++datagrams;
      at += part_bytes;
    } while (at < bytes);
  }
  return datagrams;
}

void UdpSocket::Send(const uint8_t* bytes, std::span<const uint16_t> datagram_bytes,
                     std::span<const Address> destinations) {
  if (datagram_bytes.empty()) return;
  Impl& io = *impl_;
  if (io.segmentation) {
    GroupRuns(datagram_bytes, io.runs);
    io.SendRuns(bytes, destinations);
    if (io.segmentation) return;
    // Refused just now. All again in single datagrams: receivers ignore what came through already.
  }
  io.runs.clear();
  size_t offset = 0;
  for (const uint16_t size : datagram_bytes) {
    io.runs.push_back({.offset = offset, .bytes = size, .segment_bytes = size});
    offset += size;
  }
  io.SendRuns(bytes, destinations);
}

// Run by run, so that all destinations get the first of it before any gets the last.
void UdpSocket::Impl::SendRuns(const uint8_t* bytes, std::span<const Address> destinations) {
  const size_t peers = std::max<size_t>(destinations.size(), 1);
  unsigned queued = 0;
  const auto flush = [&] {
    unsigned first = 0;
    while (first < queued) {
      const int sent = SendMessages(first, queued - first);
      if (sent < 0) return false;
      first += static_cast<unsigned>(sent);
    }
    queued = 0;
    return true;
  };
  for (const DatagramRun& run : runs) {
    for (size_t peer = 0; peer < peers; ++peer) {
      send_parts[queued] = {.iov_base = const_cast<uint8_t*>(bytes + run.offset), .iov_len = run.bytes};
      msghdr& message = to_send[queued].msg_hdr;
      message = {};
      if (!destinations.empty()) {
        message.msg_name = const_cast<uint8_t*>(destinations[peer].bytes.data());
        message.msg_namelen = destinations[peer].size;
      }
      message.msg_iov = &send_parts[queued];
      message.msg_iovlen = 1;
      if (run.bytes > run.segment_bytes) {
        message.msg_control = send_controls[queued].bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(uint16_t));
        cmsghdr* part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = IPPROTO_UDP;
        part->cmsg_type = UDP_SEGMENT;
        part->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        std::memcpy(CMSG_DATA(part), &run.segment_bytes, sizeof(uint16_t));
      }
      if (++queued == kSendBatch && !flush()) return;
    }
  }
  flush();
}

// Sends some of to_send[first, first + count). Returns how many are done with, sent or dropped; -1 if all has
// to be sent again without segmentation.
int UdpSocket::Impl::SendMessages(unsigned first, unsigned count) {
  const auto drop = [&](unsigned messages) {
    for (unsigned i = first; i < first + messages; ++i) {
      const msghdr& message = to_send[i].msg_hdr;
      uint16_t segment_bytes = 0;
      if (message.msg_control != nullptr) std::memcpy(&segment_bytes, CMSG_DATA(CMSG_FIRSTHDR(&message)), 2);
      const size_t bytes = message.msg_iov->iov_len;
      stats.datagrams_unsent += segment_bytes == 0 ? 1 : (bytes + segment_bytes - 1) / segment_bytes;
    }
    return static_cast<int>(messages);
  };
  bool cleared_error = false;
  bool waited = false;
  while (true) {
    const int sent = sendmmsg(fd, &to_send[first], count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) return sent;
    const int error = sent < 0 ? errno : EAGAIN;
    if (error == EINTR) continue;
    if (error == EAGAIN || error == ENOBUFS) {
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      if (waited || poll(&writable, 1, kSendWaitMs) == 0) return drop(count);
      waited = true;
    } else if (ReportsEarlierPacket(error) && !cleared_error) {
      ++stats.errors_reported;  // reading it cleared it
      cleared_error = true;
    } else if (segmentation && RefusesSegmentation(error) && to_send[first].msg_hdr.msg_control != nullptr) {
      segmentation = false;
      return -1;
    } else {
      return drop(1);
    }
  }
}

}  // namespace passing
