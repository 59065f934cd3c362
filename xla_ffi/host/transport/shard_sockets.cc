#include "host/transport/shard_sockets.h"

#include <algorithm>
#include <utility>

#include "net/clock.h"

namespace passing {

ShardSockets::ShardSockets(std::vector<UdpSocket> sockets, std::vector<std::optional<UdpSocket>> groups,
                           size_t full_packet_bytes, int wake_fd)
    : sockets_(std::move(sockets)), groups_(std::move(groups)) {
  groups_.resize(sockets_.size());
  for (UdpSocket& socket : sockets_) drivers_.emplace_back(socket, full_packet_bytes);
  const auto watch = [this](int fd) { watched_.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
  for (const UdpSocket& socket : sockets_) watch(socket.fd());
  for (const auto& group : groups_) watch(group ? group->fd() : -1);  // poll skips -1
  watch(wake_fd);
}

std::vector<Driver*> ShardSockets::drivers() {
  std::vector<Driver*> pointers;
  for (UdpDriver& driver : drivers_) pointers.push_back(&driver);
  return pointers;
}

std::vector<bool> ShardSockets::hears_group() const {
  std::vector<bool> heard;
  for (const auto& group : groups_) heard.push_back(group.has_value());
  return heard;
}

UdpSocketStats ShardSockets::stats() const {
  UdpSocketStats sum = of_closed_;
  for (const UdpSocket& socket : sockets_) sum += socket.stats();
  return sum;
}

void ShardSockets::Close() {
  of_closed_ = stats();
  watched_.clear();
  drivers_.clear();
  groups_.clear();
  sockets_.clear();
}

bool ShardSockets::Sleep(int64_t due_us) {
  timespec timeout{};
  if (due_us != INT64_MAX) {
    const int64_t left_us = std::max<int64_t>(due_us - MonotonicUs(), 0);
    timeout = {.tv_sec = left_us / 1'000'000, .tv_nsec = left_us % 1'000'000 * 1000};
  }
  if (ppoll(watched_.data(), watched_.size(), due_us == INT64_MAX ? nullptr : &timeout, nullptr) <= 0) return false;
  return std::any_of(watched_.begin(), watched_.end() - 1, [](const pollfd& socket) { return socket.revents != 0; });
}

}  // namespace passing
