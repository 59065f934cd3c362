// Looks addresses up by name, and converts them from and to the system's sockaddr.
#ifndef XLA_FFI_NET_SOCKET_ADDRESS_H_
#define XLA_FFI_NET_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "net/address.h"

namespace passing {

// Resolves a host name or a literal to the first address found. Throws std::system_error.
Address ResolveAddress(const std::string& host, uint16_t port);

// Accepts a literal only: a name, which somebody else may have given, would make the caller wait for DNS.
Address NumericAddress(const std::string& host, uint16_t port);

// Copies only the fields that tell two peers apart, so that equal addresses have equal bytes.
Address FromSockaddr(const sockaddr_storage& from);
const sockaddr* AsSockaddr(const Address& address);
sa_family_t Family(const Address& address);

// An IPv4 address as an IPv6 socket writes it.
Address MappedToIPv6(const Address& address);

}  // namespace passing

#endif  // XLA_FFI_NET_SOCKET_ADDRESS_H_
