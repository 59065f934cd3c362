// A rank that sends to a switch over the loopback interface.
#ifndef TESTS_XLA_FFI_SWITCH_LOOPBACK_RANK_H_
#define TESTS_XLA_FFI_SWITCH_LOOPBACK_RANK_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <system_error>
#include <thread>

#include "../tests/xla_ffi/net/loopback_group.h"
#include "net/clock.h"
#include "net/socket_address.h"
#include "net/udp_driver.h"
#include "switch/udp_switch.h"
#include "wire/lanes.h"

namespace passing {

inline constexpr uint32_t kSlotCount = 64;

// One rank that sends the same lane in every packet. It stays where it is: the driver refers to the socket.
class Rank {
 public:
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  Rank(const char* host, uint16_t switch_port, uint16_t rank)
      : socket_(UdpSocket::ConnectedTo(host, switch_port)), driver_(socket_), rank_(rank) {}

  Address address(const char* host) const { return ResolveAddress(host, socket_.port()); }
  UdpSocket Join(const Address& group) const { return socket_.JoinGroup(group); }

  void Contribute(uint32_t sequence, int32_t lane, uint16_t lane_count = 360, uint16_t job = 1) {
    const wire::Header header{.job = job,
                              .epoch = 1,
                              .worker = rank_,
                              .slot = static_cast<uint16_t>(sequence % kSlotCount),
                              .sequence = sequence,
                              .version = static_cast<uint8_t>(sequence / kSlotCount % 2),
                              .element_count = lane_count};
    uint8_t* packet = driver_.Reserve();
    wire::Encode(header, packet);
    for (uint16_t i = 0; i < lane_count; ++i) {
      wire::StoreLane(packet + wire::kHeaderBytes, i, static_cast<uint32_t>(lane));
    }
    driver_.Commit(wire::kHeaderBytes + size_t{4} * lane_count);
  }
  void Flush() { driver_.Flush(); }

  // Receives up to `count` results; the lanes must all be `lane`.
  size_t Expect(size_t count, int32_t lane, int timeout_ms = 20'000) {
    return ExpectOn(socket_, count, lane, timeout_ms);
  }

  static size_t ExpectOn(UdpSocket& socket, size_t count, int32_t lane, int timeout_ms = 20'000) {
    size_t results = 0;
    while (results < count) {
      pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, timeout_ms) <= 0) break;
      socket.Receive([&](std::span<const uint8_t> packet, const Address&) {
        wire::Header header;
        ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
        ASSERT_EQ(header.type, wire::PacketType::kResult);
        for (size_t i = 0; i < header.element_count; ++i) {
          ASSERT_EQ(wire::LoadLane(&packet[wire::kHeaderBytes], i), static_cast<uint32_t>(lane));
        }
        ++results;
      });
    }
    return results;
  }

 private:
  UdpSocket socket_;
  UdpDriver driver_;
  uint16_t rank_;
};

inline uint64_t Count(const UdpSwitch& udp_switch, Verdict verdict) {
  return udp_switch.stats().verdicts[static_cast<size_t>(verdict)];
}

// Waits until the switch has come to this verdict, and returns how often it has.
inline uint64_t AwaitCount(const UdpSwitch& udp_switch, Verdict verdict) {
  const int64_t deadline_us = MonotonicUs() + 20'000'000;
  while (Count(udp_switch, verdict) == 0 && MonotonicUs() < deadline_us) poll(nullptr, 0, 1);
  return Count(udp_switch, verdict);
}

inline JobSlots MakeJob(const char* host, const std::deque<Rank>& ranks) {
  JobSlots job{.job = 1, .epoch = 1, .slot_first = 0, .slot_count = kSlotCount, .addresses = {}};
  for (const Rank& rank : ranks) job.addresses.push_back(rank.address(host));
  return job;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_SWITCH_LOOPBACK_RANK_H_
