// Peak memory of a host beyond the caller's buffers while it sums in place: resident pages of the process (socket,
// transport, its thread, plan, window and all), and the kernel's socket buffers beside them.
//
//   host_memory [MiB ...]       64, 512 and 1024 without arguments
//
// Rank 0 is this process. Rank 1 and the switch are a child's, so that their memory doesn't count.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "host/transport/transport.h"
#include "net/socket_address.h"
#include "switch/udp_switch.h"

namespace passing {
namespace {

constexpr uint32_t kSlots = 256;
constexpr int kSums = 3;

// One message a datagram, between the two processes.
void Say(int fd, const std::string& message) {
  if (send(fd, message.data(), message.size(), 0) < 0) std::abort();
}
std::string Hear(int fd) {
  std::string message(1 << 16, '\0');
  const ssize_t bytes = recv(fd, message.data(), message.size(), 0);
  message.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return message;
}

uint64_t StatusKib(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::strtoull(line.c_str() + std::strlen(field) + 1, nullptr, 10);
  }
  std::abort();
}

std::unique_ptr<Transport> Join(UdpSocket socket, uint16_t rank) {
  std::vector<UdpSocket> sockets;
  sockets.push_back(std::move(socket));
  const JobConfig job{
      .rank = rank, .world_size = 2, .shards = {{.job = 1, .epoch = 1, .worker = rank}}, .slots_per_shard = kSlots};
  return std::make_unique<Transport>(std::move(sockets), TransportOptions{.job = job});
}

// Sums `data` in place, again and again; `while_waiting` runs until each is done.
template <typename F>
void SumInPlace(Transport& transport, std::vector<float>& data, F&& while_waiting) {
  const auto shape = std::make_shared<SumShape>(
      SumShape{.site_name = "memory", .dtype = DType::kFloat32, .leaf_elements = {data.size()}});
  for (uint32_t execution = 0; execution < kSums; ++execution) {
    std::latch done(1);
    transport.Start({.key = {.site = 1, .execution = execution},
                     .shape = shape,
                     .inputs = {data.data()},
                     .outputs = {data.data()},
                     .done = [&](const Failure* failure) {
                       if (failure != nullptr) std::fprintf(stderr, "%s\n", failure->message.c_str());
                       if (failure != nullptr) std::abort();
                       done.count_down();
                     }});
    while (!done.try_wait()) while_waiting();
  }
}

// Rank 1 and the switch.
void RunPeer(int fd, std::vector<float> data) {
  UdpSwitch data_plane("127.0.0.1", 0, kSlots);
  UdpSocket socket = UdpSocket::ConnectedTo("127.0.0.1", data_plane.port());
  Say(fd, std::to_string(data_plane.port()));
  const auto other_port = static_cast<uint16_t>(std::stoi(Hear(fd)));
  data_plane.AddJob(
      {.job = 1,
       .epoch = 1,
       .slot_first = 0,
       .slot_count = kSlots,
       .addresses = {ResolveAddress("127.0.0.1", other_port), ResolveAddress("127.0.0.1", socket.port())}});
  const auto transport = Join(std::move(socket), 1);
  std::thread orders([&] {
    while (true) {
      std::string message = Hear(fd);
      if (message.empty()) return;  // rank 0 is done
      transport->DeliverOrderMessage(std::move(message));
    }
  });
  SumInPlace(*transport, data, [] { usleep(1000); });
  Say(fd, "done");
  orders.join();
}

void Measure(uint64_t mebibytes, float value) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0) std::abort();
  const uint64_t elements = mebibytes << 18;
  const pid_t child = fork();
  if (child == 0) {
    close(fds[0]);
    RunPeer(fds[1], std::vector<float>(elements, value));
    _exit(0);
  }
  close(fds[1]);
  std::vector<float> data(elements, value);
  const auto switch_port = static_cast<uint16_t>(std::stoi(Hear(fds[0])));
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts again from here
  const uint64_t before_kib = StatusKib("VmRSS:");
  {
    UdpSocket socket = UdpSocket::ConnectedTo("127.0.0.1", switch_port);
    int receive_bytes = 0, send_bytes = 0;
    socklen_t size = sizeof(int);
    getsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, &size);
    getsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &send_bytes, &size);
    Say(fds[0], std::to_string(socket.port()));
    const auto transport = Join(std::move(socket), 0);
    SumInPlace(*transport, data, [&] {
      const auto event = transport->WaitEvent(0.01);
      if (!event) return;
      if (const auto* order = std::get_if<OrderMessage>(&*event)) Say(fds[0], order->bytes);
    });
    const uint64_t peak_kib = StatusKib("VmHWM:");
    std::printf("%5llu MiB of %-4s  %8.2f MiB resident beyond the buffers, socket buffers up to %5.2f MiB\n",
                static_cast<unsigned long long>(mebibytes), std::isnan(value) ? "NaN" : "ones",
                static_cast<double>(peak_kib - before_kib) / 1024, (receive_bytes + send_bytes) / 1048576.0);
    std::fflush(stdout);
    while (Hear(fds[0]) != "done") {
    }
  }
  close(fds[0]);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace passing

int main(int argc, char** argv) {
  std::vector<uint64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {64, 512, 1024};
  for (const uint64_t mebibytes : sizes) passing::Measure(mebibytes, 1);
  for (const uint64_t mebibytes : sizes) passing::Measure(mebibytes, NAN);
}
