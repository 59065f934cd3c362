// A multicast group on the loopback interface, for tests.
#ifndef TESTS_XLA_FFI_NET_LOOPBACK_GROUP_H_
#define TESTS_XLA_FFI_NET_LOOPBACK_GROUP_H_

#include <poll.h>

#include "net/socket_address.h"
#include "net/udp_socket.h"

namespace passing {

// A port of the test's own: other tests run beside it.
inline Address LoopbackGroup() { return ResolveAddress("239.192.0.1", UdpSocket::BoundTo("127.0.0.1", 0).port()); }

// Does this machine carry multicast on its loopback interface? Containers may not.
inline bool LoopbackCarriesMulticast() {
  try {
    UdpSocket sender = UdpSocket::BoundTo("127.0.0.1", 0);
    const Address group = LoopbackGroup();
    UdpSocket host = UdpSocket::ConnectedTo("127.0.0.1", sender.port()).JoinGroup(group);
    if (!sender.MulticastFrom(ResolveAddress("127.0.0.1", 0))) return false;
    const uint16_t bytes = 24;
    sender.Send(std::vector<uint8_t>(bytes).data(), {&bytes, 1}, {&group, 1});
    pollfd readable{.fd = host.fd(), .events = POLLIN, .revents = 0};
    return poll(&readable, 1, 1000) > 0;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_NET_LOOPBACK_GROUP_H_
