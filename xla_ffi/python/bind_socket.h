// The socket to a switch that Python opens, joins a job with, and hands on.
#ifndef XLA_FFI_PYTHON_BIND_SOCKET_H_
#define XLA_FFI_PYTHON_BIND_SOCKET_H_

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>

#include "net/udp_socket.h"
#include "wire/probe.h"

namespace passing {

struct PythonSocket {
  std::optional<UdpSocket> socket;  // until it is taken
  uint16_t port;
  std::optional<UdpSocket> group{};  // taken with it
  std::optional<wire::ProbeListener> listener{};

  // For a transport, or a switch below the one that it leads to. Throws std::invalid_argument the second time.
  std::pair<UdpSocket, std::optional<UdpSocket>> Take() {
    if (!socket) throw std::invalid_argument("the socket has been handed to a transport or a switch already");
    std::pair taken(std::move(*socket), std::move(group));
    socket.reset();
    group.reset();
    return taken;
  }
};

}  // namespace passing

#endif  // XLA_FFI_PYTHON_BIND_SOCKET_H_
