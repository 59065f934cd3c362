#include "python/bind_socket.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/lifeline.h"
#include "net/socket_address.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

template <typename Self>
auto& Socket(Self& self) {
  if (!self.socket) throw std::invalid_argument("the socket has been handed on");
  return *self.socket;
}

UdpSocket& Group(PythonSocket& self) {
  if (!self.group) throw std::invalid_argument("the socket has joined no group");
  return *self.group;
}

}  // namespace

void BindSocket(nb::module_& m) {
  nb::class_<PythonSocket>(m, "UdpSocket")
      .def(
          "__init__",
          [](PythonSocket* self, const std::string& host, uint16_t port) {
            auto socket = UdpSocket::ConnectedTo(host, port);
            const uint16_t own_port = socket.port();
            new (self) PythonSocket{std::move(socket), own_port};
          },
          "switch_host"_a, "switch_port"_a)
      .def_ro("port", &PythonSocket::port)
      .def("lanes_that_fit",
           [](const PythonSocket& self) {
             const auto [bytes, header_bytes] = Socket(self).path_mtu();
             const size_t headers = header_bytes + wire::kHeaderBytes + wire::kTagBytes;
             return bytes < headers ? 0 : (bytes - headers) / 4;
           })
      .def(
          "probe_path",
          [](const PythonSocket& self, uint32_t nonce, uint16_t lanes) {
            Socket(self).SendUncut(wire::MakePathProbe(nonce, lanes));
          },
          "nonce"_a, "lanes"_a)
      .def(
          "hears_path",
          [](PythonSocket& self, uint32_t nonce, uint16_t lanes) {
            const std::vector<uint8_t> probe = wire::MakePathProbe(nonce, lanes);
            bool heard = false;
            const auto on_datagram = [&](std::span<const uint8_t> packet, const Address&) {
              heard = heard || std::ranges::equal(packet, probe);
            };
            while (Socket(self).Receive(on_datagram) > 0) {
            }
            return heard;
          },
          "nonce"_a, "lanes"_a)
      .def(
          "to_port",
          [](PythonSocket& self, uint16_t port) {
            if (!self.socket) throw std::invalid_argument("the socket has been handed on");
            return PythonSocket{self.socket->ToPort(port), self.port};
          },
          "port"_a)
      .def(
          "join_group",
          [](PythonSocket& self, const std::string& address, uint16_t port, uint16_t job, uint16_t epoch,
             uint32_t nonce) {
            const UdpSocket& socket = Socket(self);
            self.group.reset();
            self.group = socket.JoinGroup(NumericAddress(address, port));
            self.listener.emplace(wire::ProbeName{.job = job, .epoch = epoch, .nonce = nonce});
          },
          "address"_a, "port"_a, nb::kw_only(), "job"_a, "epoch"_a, "nonce"_a)
      .def("group_fileno", [](PythonSocket& self) { return Group(self).fd(); })
      .def("hears_group",
           [](PythonSocket& self) {
             const auto on_datagram = [&](std::span<const uint8_t> packet, const Address&) {
               self.listener->OnPacket(packet);
             };
             while (Group(self).Receive(on_datagram) > 0) {
             }
             return self.listener->heard_all();
           })
      .def("leave_group", [](PythonSocket& self) { self.group.reset(); });

  nb::class_<Lifeline>(m, "Lifeline")
      .def(
          "__init__",
          [](Lifeline* self, int fd, int64_t period_us) {
            new (self) Lifeline(fd, std::chrono::microseconds(period_us));
          },
          "fd"_a, nb::kw_only(), "period_us"_a);
}

}  // namespace passing
