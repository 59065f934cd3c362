// The driver over a connected UDP socket.
#ifndef XLA_FFI_NET_UDP_DRIVER_H_
#define XLA_FFI_NET_UDP_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "net/driver.h"
#include "net/udp_socket.h"
#include "wire/header.h"

namespace passing {

class UdpDriver : public Driver {
 public:
  // The socket must outlive the driver. `full_packet_bytes`: the most that a packet has, and most packets have; far
  // shorter ones are sent last.
  explicit UdpDriver(UdpSocket& socket, size_t full_packet_bytes = wire::kPacketBytesAtMtu1500);

  uint8_t* Reserve() override;
  void Commit(size_t bytes) override;
  void Flush() override;

 private:
  UdpSocket& socket_;
  const size_t full_packet_bytes_;
  std::unique_ptr<uint8_t[]> buffer_;  // the queued packets side by side
  size_t used_bytes_ = 0;
  std::vector<uint16_t> packet_bytes_;
  std::unique_ptr<uint8_t[]> aside_;  // queued short packets
  size_t aside_bytes_ = 0;
  std::vector<uint16_t> aside_packet_bytes_;
};

}  // namespace passing

#endif  // XLA_FFI_NET_UDP_DRIVER_H_
