#include "net/udp_driver.h"

#include <cassert>

namespace passing {
namespace {

// One super-packet of full packets. Sending each as soon as it is full lets the switch start early, and the
// buffer stays in the cache.
constexpr size_t kBufferBytes = 65'507 / wire::kMaxPacketBytes * wire::kMaxPacketBytes;

}  // namespace

UdpDriver::UdpDriver(UdpSocket& socket) : socket_(socket), buffer_(new uint8_t[kBufferBytes]) {
  packet_bytes_.reserve(kBufferBytes / wire::kHeaderBytes);
}

uint8_t* UdpDriver::Reserve() {
  if (used_bytes_ + wire::kMaxPacketBytes > kBufferBytes) Flush();
  return buffer_.get() + used_bytes_;
}

void UdpDriver::Commit(size_t bytes) {
  assert(bytes > 0 && bytes <= wire::kMaxPacketBytes);
  assert(used_bytes_ + bytes <= kBufferBytes);
  packet_bytes_.push_back(static_cast<uint16_t>(bytes));
  used_bytes_ += bytes;
}

void UdpDriver::Flush() {
  if (packet_bytes_.empty()) return;
  socket_.Send(buffer_.get(), packet_bytes_);
  packet_bytes_.clear();
  used_bytes_ = 0;
}

}  // namespace passing
