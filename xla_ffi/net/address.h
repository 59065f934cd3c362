// The address that a packet came from or goes to, as a value to compare and store. Needs no socket.
#ifndef XLA_FFI_NET_ADDRESS_H_
#define XLA_FFI_NET_ADDRESS_H_

#include <array>
#include <cstdint>

namespace passing {

// IPv4 or IPv6 bytes and port. Equal addresses have equal bytes.
struct Address {
  std::array<uint8_t, 28> bytes{};  // a sockaddr_in or sockaddr_in6
  uint8_t size = 0;
  friend bool operator==(const Address&, const Address&) = default;
};

}  // namespace passing

#endif  // XLA_FFI_NET_ADDRESS_H_
