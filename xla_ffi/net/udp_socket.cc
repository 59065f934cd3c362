#include "net/udp_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "net/socket_address.h"

namespace passing {
namespace {

// Holds what some 20 ranks have in flight (a window of 256 chunks each): the kernel grants twice as much as is asked,
// and counts what it keeps beside each packet, too. More ranks narrow their windows where packets are dropped.
constexpr int kSocketBufferBytes = 4 << 20;

[[noreturn]] void ThrowErrno(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

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
  const int off = 0;
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);  // serve IPv4 as well
  return fd;
}

}  // namespace

struct UdpSocket::Impl {
  explicit Impl(int fd_in) : fd(fd_in) {}
  ~Impl() { close(fd); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const int fd;
  sa_family_t family = AF_INET;
  uint16_t port = 0;
  Address multicast_from;
  UdpSocketStats stats;
  BatchReceiver receiver{fd, stats};
  BatchSender sender{fd, stats};
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

UdpSocket UdpSocket::AtSameAddress() const {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (getsockname(impl_->fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) ThrowErrno("getsockname");
  auto impl = std::make_unique<Impl>(OpenSocket(impl_->family));
  // Not before the first was bound: it was to find the port free.
  const int on = 1;
  for (const int fd : {impl_->fd, impl->fd}) {
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ThrowErrno("SO_REUSEPORT");
  }
  if (bind(impl->fd, reinterpret_cast<const sockaddr*>(&own), size) != 0) ThrowErrno("bind to the same address");
  return UdpSocket(std::move(impl));
}

UdpSocket UdpSocket::ToPort(uint16_t port) const {
  UdpSocket other = AtSameAddress();
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(fd(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) ThrowErrno("getpeername");
  (peer.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(peer).sin_port
                             : reinterpret_cast<sockaddr_in6&>(peer).sin6_port) = htons(port);
  if (connect(other.fd(), reinterpret_cast<sockaddr*>(&peer), size) != 0) ThrowErrno("connect to another port");
  return other;
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
  sockaddr_in own{}, to;
  socklen_t size = sizeof own;
  if (getsockname(impl_->fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) ThrowErrno("getsockname");
  const Address peer = Peer();
  std::memcpy(&to, group.bytes.data(), sizeof to);

  auto impl = std::make_unique<Impl>(OpenSocket(AF_INET));
  const int on = 1, off = 0;
  if (setsockopt(impl->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) ThrowErrno("SO_REUSEADDR");
  // Not what other sockets of this machine joined on other interfaces.
  if (setsockopt(impl->fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off) != 0) ThrowErrno("IP_MULTICAST_ALL");
  if (bind(impl->fd, AsSockaddr(group), group.size) != 0) ThrowErrno("bind to the group");
  // The kernel drops what others send to the group.
  if (connect(impl->fd, AsSockaddr(peer), peer.size) != 0) ThrowErrno("connect");
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
bool UdpSocket::segmentation() const { return impl_->sender.segmentation(); }
void UdpSocket::DisableSegmentation() { impl_->sender.DisableSegmentation(); }

Address UdpSocket::Peer() const {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(impl_->fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) ThrowErrno("getpeername");
  return FromSockaddr(peer);
}

Address UdpSocket::Native(const Address& address) const {
  return impl_->family == AF_INET6 && Family(address) == AF_INET ? MappedToIPv6(address) : address;
}

UdpSocket::PathMtu UdpSocket::path_mtu() const {
  const bool is_ipv4 = impl_->family == AF_INET;
  int bytes = 0;
  socklen_t size = sizeof bytes;
  if (getsockopt(impl_->fd, is_ipv4 ? IPPROTO_IP : IPPROTO_IPV6, is_ipv4 ? IP_MTU : IPV6_MTU, &bytes, &size) != 0) {
    ThrowErrno("the MTU of the path");
  }
  return {.bytes = static_cast<size_t>(bytes), .header_bytes = is_ipv4 ? size_t{20 + 8} : size_t{40 + 8}};
}

void UdpSocket::SendUncut(std::span<const uint8_t> datagram, const Address* to, const Address& from) const {
  const auto let_cut = [this](bool may_be_cut) {
    const int ipv4 = may_be_cut ? IP_PMTUDISC_WANT : IP_PMTUDISC_DO;
    const int ipv6 = may_be_cut ? IPV6_PMTUDISC_WANT : IPV6_PMTUDISC_DO;
    setsockopt(impl_->fd, IPPROTO_IP, IP_MTU_DISCOVER, &ipv4, sizeof ipv4);  // also of a socket for both
    if (impl_->family == AF_INET6) setsockopt(impl_->fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &ipv6, sizeof ipv6);
  };
  iovec part{.iov_base = const_cast<uint8_t*>(datagram.data()), .iov_len = datagram.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (to != nullptr) {
    message.msg_name = const_cast<uint8_t*>(to->bytes.data());
    message.msg_namelen = to->size;
  }
  PacketOptions options;
  if (from.size > 0) LeaveFrom(message, options, from);
  let_cut(false);
  sendmsg(impl_->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  let_cut(true);
}

void UdpSocket::NoteOwnAddress() { impl_->receiver.NoteOwnAddress(); }
const Address& UdpSocket::came_to() const { return impl_->receiver.came_to(); }

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

size_t UdpSocket::Receive(const OnDatagram& on_datagram, unsigned messages_max) {
  return impl_->receiver.Receive(on_datagram, messages_max);
}

void UdpSocket::Send(const uint8_t* bytes, std::span<const uint16_t> datagram_bytes,
                     std::span<const Address> destinations, int wait_ms, std::span<const Address> from) {
  impl_->sender.Send(bytes, datagram_bytes, destinations, wait_ms, from);
}

}  // namespace passing
