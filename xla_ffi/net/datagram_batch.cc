#include "net/datagram_batch.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "net/clock.h"
#include "net/socket_address.h"

// Older libc headers lack these two of Linux.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace passing {
namespace {

constexpr size_t kMaxSegments = 64;  // UDP_MAX_SEGMENTS of the kernel

// A pending error of an earlier packet (ICMP), not of this call.
bool ReportsEarlierPacket(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN ||
         error == ENETDOWN || error == ENOPROTOOPT || error == EPROTO;
}

// While a device has no room for a packet. It passes one of 64 KB on in 0.5 ms at 1 Gbit/s.
constexpr std::chrono::microseconds kNoBufferWait(100);

bool RefusesSegmentation(int error) {
  return error == EIO || error == EINVAL || error == ENOPROTOOPT || error == EOPNOTSUPP || error == EMSGSIZE;
}

// Adds a control message to those that the message has, for which there is room.
template <typename Value>
void AddOption(msghdr& message, PacketOptions& options, int level, int type, const Value& value) {
  message.msg_control = options.bytes;
  auto* part = reinterpret_cast<cmsghdr*>(options.bytes + message.msg_controllen);
  message.msg_controllen += CMSG_SPACE(sizeof value);
  assert(message.msg_controllen <= sizeof options.bytes);
  part->cmsg_level = level;
  part->cmsg_type = type;
  part->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(part), &value, sizeof value);
}

// Reads at which of our own addresses a message came, if this part says so.
std::optional<Address> OwnAddress(const cmsghdr* part) {
  sockaddr_storage own{};
  if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO) {
    in_pktinfo info;
    std::memcpy(&info, CMSG_DATA(part), sizeof info);
    own.ss_family = AF_INET;
    reinterpret_cast<sockaddr_in&>(own).sin_addr = info.ipi_spec_dst;
  } else if (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_PKTINFO) {
    in6_pktinfo info;
    std::memcpy(&info, CMSG_DATA(part), sizeof info);
    own.ss_family = AF_INET6;
    reinterpret_cast<sockaddr_in6&>(own).sin6_addr = info.ipi6_addr;
  } else {
    return std::nullopt;
  }
  return FromSockaddr(own);
}

// How long each datagram of a super-packet to be sent is; 0 if it is no super-packet.
uint16_t SegmentBytes(const msghdr& message) {
  const cmsghdr* first = CMSG_FIRSTHDR(&message);
  uint16_t segment_bytes = 0;
  if (first != nullptr && first->cmsg_type == UDP_SEGMENT && first->cmsg_level == IPPROTO_UDP) {
    std::memcpy(&segment_bytes, CMSG_DATA(first), sizeof segment_bytes);
  }
  return segment_bytes;
}

}  // namespace

void LeaveFrom(msghdr& message, PacketOptions& options, const Address& own) {
  if (Family(own) == AF_INET) {
    sockaddr_in from;
    std::memcpy(&from, own.bytes.data(), sizeof from);
    in_pktinfo info{};
    info.ipi_spec_dst = from.sin_addr;
    AddOption(message, options, IPPROTO_IP, IP_PKTINFO, info);
  } else {
    sockaddr_in6 from;
    std::memcpy(&from, own.bytes.data(), sizeof from);
    AddOption(message, options, IPPROTO_IPV6, IPV6_PKTINFO, in6_pktinfo{from.sin6_addr, 0});
  }
}

void GroupRuns(std::span<const uint16_t> datagram_bytes, std::vector<DatagramRun>& runs) {
  runs.clear();
  size_t offset = 0;
  size_t segments = 0;
  bool open = false;  // may the last run grow?
  for (const uint16_t bytes : datagram_bytes) {
    // An empty datagram stands alone: nothing would be left to cut it from.
    if (open && bytes > 0 && segments < kMaxSegments && bytes <= runs.back().segment_bytes &&
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

BatchReceiver::BatchReceiver(int fd, UdpSocketStats& stats) : fd_(fd), stats_(stats) {
  const int on = 1;
  setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);  // kernels before 5.0 deliver datagrams one by one
}

void BatchReceiver::NoteOwnAddress() {
  const int on = 1;
  setsockopt(fd_, IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
  setsockopt(fd_, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on);  // of the other kind it fails
}

void BatchReceiver::Prepare() {
  for (unsigned i = 0; i < kBatch; ++i) {
    parts_[i] = {.iov_base = buffer_.get() + i * kMessageBytes, .iov_len = kMessageBytes};
    msghdr& message = messages_[i].msg_hdr;
    message = {};
    message.msg_name = &sources_[i];
    message.msg_namelen = sizeof sources_[i];
    message.msg_iov = &parts_[i];
    message.msg_iovlen = 1;
    message.msg_control = options_[i].bytes;
    message.msg_controllen = sizeof options_[i].bytes;
  }
}

size_t BatchReceiver::Receive(const OnDatagram& on_datagram, unsigned messages_max) {
  Prepare();
  const unsigned room = std::min(messages_max, kBatch);
  int count = recvmmsg(fd_, messages_.data(), room, MSG_DONTWAIT, nullptr);
  if (count < 0 && ReportsEarlierPacket(errno)) {
    ++stats_.errors_reported;  // reading it cleared it, so this time we get what has arrived
    count = recvmmsg(fd_, messages_.data(), room, MSG_DONTWAIT, nullptr);
  }
  size_t datagrams = 0;
  for (int i = 0; i < count; ++i) {
    msghdr& message = messages_[i].msg_hdr;
    if ((message.msg_flags & MSG_TRUNC) != 0) continue;  // larger than any of ours
    const size_t bytes = messages_[i].msg_len;
    size_t segment_bytes = bytes;  // without GRO: one datagram
    came_to_ = {};
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      if (const auto own = OwnAddress(part)) came_to_ = *own;
      if (part->cmsg_level != IPPROTO_UDP || part->cmsg_type != UDP_GRO) continue;
      int value;
      std::memcpy(&value, CMSG_DATA(part), sizeof value);
      if (value > 0) segment_bytes = static_cast<size_t>(value);
    }
    const Address source = FromSockaddr(sources_[i]);
    const uint8_t* data = static_cast<const uint8_t*>(parts_[i].iov_base);
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

void BatchSender::Send(const uint8_t* bytes, std::span<const uint16_t> datagram_bytes,
                       std::span<const Address> destinations, int wait_ms, std::span<const Address> from) {
  assert(from.empty() || from.size() == destinations.size());
  if (datagram_bytes.empty()) return;
  wait_ms_ = wait_ms;
  if (segmentation()) {
    GroupRuns(datagram_bytes, runs_);
    SendRuns(bytes, destinations, from);
    if (segmentation()) return;
    // It was refused just now. All is sent again in single datagrams: receivers ignore what came through already.
  } else if (sends_until_retry_ > 0) {
    --sends_until_retry_;
  }
  runs_.clear();
  size_t offset = 0;
  for (const uint16_t size : datagram_bytes) {
    runs_.push_back({.offset = offset, .bytes = size, .segment_bytes = size});
    offset += size;
  }
  SendRuns(bytes, destinations, from);
}

// Goes run by run, so that all destinations get the first run before any gets the last.
void BatchSender::SendRuns(const uint8_t* bytes, std::span<const Address> destinations, std::span<const Address> from) {
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
  for (const DatagramRun& run : runs_) {
    for (size_t peer = 0; peer < peers; ++peer) {
      parts_[queued] = {.iov_base = const_cast<uint8_t*>(bytes + run.offset), .iov_len = run.bytes};
      msghdr& message = messages_[queued].msg_hdr;
      message = {};
      if (!destinations.empty()) {
        message.msg_name = const_cast<uint8_t*>(destinations[peer].bytes.data());
        message.msg_namelen = destinations[peer].size;
      }
      message.msg_iov = &parts_[queued];
      message.msg_iovlen = 1;
      if (run.bytes > run.segment_bytes) {
        AddOption(message, options_[queued], IPPROTO_UDP, UDP_SEGMENT, static_cast<uint16_t>(run.segment_bytes));
      }
      if (!from.empty()) LeaveFrom(message, options_[queued], from[peer]);
      if (++queued == kBatch && !flush()) return;
    }
  }
  flush();
}

// Sends some of messages_[first, first + count). Returns how many are done with, sent or dropped; -1 if all has
// to be sent again without segmentation.
int BatchSender::SendMessages(unsigned first, unsigned count) {
  const auto drop = [&](unsigned messages) {
    for (unsigned i = first; i < first + messages; ++i) {
      const msghdr& message = messages_[i].msg_hdr;
      const uint16_t segment_bytes = SegmentBytes(message);
      const size_t bytes = message.msg_iov->iov_len;
      stats_.datagrams_unsent += segment_bytes == 0 ? 1 : (bytes + segment_bytes - 1) / segment_bytes;
    }
    return static_cast<int>(messages);
  };
  bool cleared_error = false;
  int64_t give_up_us = 0;
  while (true) {
    const int sent = sendmmsg(fd_, &messages_[first], count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) return sent;
    const int error = sent < 0 ? errno : EAGAIN;
    if (error == EINTR) continue;
    if (error == EAGAIN || error == ENOBUFS) {
      const int64_t now_us = MonotonicUs();
      if (give_up_us == 0) give_up_us = now_us + 1000 * wait_ms_;
      if (now_us >= give_up_us) return drop(count);
      if (error == EAGAIN) {
        pollfd writable{.fd = fd_, .events = POLLOUT, .revents = 0};
        poll(&writable, 1, static_cast<int>((give_up_us - now_us + 999) / 1000));
      } else {  // the kernel has no memory or the device no room, of which poll knows nothing
        std::this_thread::sleep_for(kNoBufferWait);
      }
    } else if (ReportsEarlierPacket(error) && !cleared_error) {
      ++stats_.errors_reported;  // reading it cleared it
      cleared_error = true;
    } else if (segmentation() && RefusesSegmentation(error) && SegmentBytes(messages_[first].msg_hdr) != 0) {
      sends_until_retry_ = kSendsAfterRefusal;
      return -1;
    } else {
      return drop(1);
    }
  }
}

}  // namespace passing
