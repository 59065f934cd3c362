#include "net/udp_driver.h"

#include <cassert>
#include <cstring>

#include "net/datagram_batch.h"

namespace passing {
namespace {

// One super-packet of full packets is queued, and sent as soon as there is no room for one more: that lets the switch
// start early, and the buffer stays in the cache. Behind it is room for who writes more than he commits.
constexpr size_t kBufferBytes = kMaxUdpBytes + wire::kMaxPacketBytes;

// A short packet ends a super-packet. Exponents stand between the data of two segments, and headers without lanes among
// them: they are set aside and sent last, so that the data stays in one run, which even takes one of them as its end.
// Then nothing is queued for long, as packets are to overtake few others.
constexpr size_t kShortPart = 4;  // a short packet is at most a full one's size divided by this
constexpr size_t kAsideBytes = 4096;

}  // namespace

UdpDriver::UdpDriver(UdpSocket& socket, size_t full_packet_bytes)
    : socket_(socket),
      full_packet_bytes_(full_packet_bytes),
      buffer_(new uint8_t[kBufferBytes + kAsideBytes]),
      aside_(new uint8_t[kAsideBytes]) {
  packet_bytes_.reserve(kBufferBytes / wire::kHeaderBytes);
}

uint8_t* UdpDriver::Reserve() {
  if (used_bytes_ + full_packet_bytes_ > kMaxUdpBytes) Flush();
  return buffer_.get() + used_bytes_;
}

void UdpDriver::Commit(size_t bytes) {
  assert(bytes > 0 && bytes <= full_packet_bytes_);
  if (bytes <= full_packet_bytes_ / kShortPart && aside_bytes_ + bytes <= kAsideBytes) {
    std::memcpy(aside_.get() + aside_bytes_, buffer_.get() + used_bytes_, bytes);
    aside_packet_bytes_.push_back(static_cast<uint16_t>(bytes));
    aside_bytes_ += bytes;
  } else {
    packet_bytes_.push_back(static_cast<uint16_t>(bytes));
    used_bytes_ += bytes;
  }
  if (aside_bytes_ > 0 && packet_bytes_.size() + aside_packet_bytes_.size() >= wire::kReorderedChunks) Flush();
}

void UdpDriver::Flush() {
  std::memcpy(buffer_.get() + used_bytes_, aside_.get(), aside_bytes_);
  packet_bytes_.insert(packet_bytes_.end(), aside_packet_bytes_.begin(), aside_packet_bytes_.end());
  aside_packet_bytes_.clear();
  aside_bytes_ = 0;
  if (packet_bytes_.empty()) return;
  socket_.Send(buffer_.get(), packet_bytes_);
  packet_bytes_.clear();
  used_bytes_ = 0;
}

}  // namespace passing
