#include "net/socket_address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

namespace passing {
namespace {

template <typename Sockaddr>
Address FromFields(const Sockaddr& fields) {
  Address address;
  static_assert(sizeof fields <= sizeof address.bytes);
  std::memcpy(address.bytes.data(), &fields, sizeof fields);
  address.size = sizeof fields;
  return address;
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

Address FromSockaddr(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = reinterpret_cast<const sockaddr_in&>(from).sin_port;
    in.sin_addr = reinterpret_cast<const sockaddr_in&>(from).sin_addr;
    return FromFields(in);
  }
  if (from.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = reinterpret_cast<const sockaddr_in6&>(from).sin6_port;
    in.sin6_addr = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
    in.sin6_scope_id = reinterpret_cast<const sockaddr_in6&>(from).sin6_scope_id;
    return FromFields(in);
  }
  return {};
}

const sockaddr* AsSockaddr(const Address& address) { return reinterpret_cast<const sockaddr*>(address.bytes.data()); }

sa_family_t Family(const Address& address) {
  sa_family_t family;
  static_assert(offsetof(sockaddr, sa_family) == 0);
  std::memcpy(&family, address.bytes.data(), sizeof family);
  return family;
}

Address MappedToIPv6(const Address& address) {
  sockaddr_in from;
  std::memcpy(&from, address.bytes.data(), sizeof from);
  sockaddr_in6 mapped{};  // ::ffff:a.b.c.d
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = from.sin_port;
  mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xFF;
  std::memcpy(&mapped.sin6_addr.s6_addr[12], &from.sin_addr, 4);
  return FromFields(mapped);
}

}  // namespace passing
