// The transport of a session: its events, its counters.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/flat_collective.h"
#include "host/transport.h"
#include "net/udp_socket.h"
#include "python/bind_socket.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

// The job at one switch, and the way there.
struct ShardLink {
  PythonSocket* socket;
  Shard shard;
};

// Shared with the attachment: a sum under way may outlive the Python object.
struct SharedTransport {
  std::shared_ptr<Transport> transport;
};

std::optional<std::pair<std::string, std::string>> Pair(const std::optional<Failure>& failure) {
  if (!failure) return std::nullopt;
  return std::pair(failure->kind, failure->message);
}

SharedTransport MakeTransport(const std::vector<ShardLink>& links, uint16_t rank, uint32_t world_size,
                              uint32_t slots_per_shard, uint32_t lanes_per_chunk, double warn_s, double deadline_s) {
  TransportOptions options{.job = {.rank = rank,
                                   .world_size = world_size,
                                   .shards = {},
                                   .slots_per_shard = slots_per_shard,
                                   .lanes_per_chunk = lanes_per_chunk},
                           .warn_s = warn_s,
                           .deadline_s = deadline_s};
  std::vector<UdpSocket> sockets;
  std::vector<std::optional<UdpSocket>> groups;
  for (const ShardLink& link : links) {
    auto [socket, group] = link.socket->Take();
    options.job.shards.push_back(link.shard);
    sockets.push_back(std::move(socket));
    groups.push_back(std::move(group));
  }
  return {std::make_shared<Transport>(std::move(sockets), options, std::move(groups))};
}

void BindEvents(nb::module_& m) {
  nb::class_<Stall>(m, "Stall")
      .def_ro("site_name", &Stall::site_name)
      .def_prop_ro("execution", [](const Stall& self) { return self.key.execution; })
      .def_prop_ro("step", [](const Stall& self) { return self.key.step; })
      .def_ro("waits_for_order", &Stall::waits_for_order)
      .def_ro("shard", &Stall::shard)
      .def_ro("slot", &Stall::slot)
      .def_ro("version", &Stall::version)
      .def_ro("sequence", &Stall::sequence);
  nb::class_<ProgramInfo>(m, "ProgramInfo")
      .def(
          "__init__",
          [](ProgramInfo* self, std::string name, std::string devices, std::string fingerprint,
             std::vector<std::string> identities) {
            new (self) ProgramInfo{std::move(name), std::move(devices), std::move(fingerprint), std::move(identities)};
          },
          nb::kw_only(), nb::arg("name"), nb::arg("devices"), nb::arg("fingerprint"), nb::arg("identities"))
      .def_ro("name", &ProgramInfo::name)
      .def_ro("devices", &ProgramInfo::devices)
      .def_ro("fingerprint", &ProgramInfo::fingerprint)
      .def_ro("identities", &ProgramInfo::identities);
  nb::class_<OrderMessage>(m, "OrderMessage")
      .def("__init__",
           [](OrderMessage* self, const nb::bytes& payload) {
             new (self) OrderMessage{{payload.c_str(), payload.size()}};
           })
      .def_prop_ro("payload", [](const OrderMessage& self) { return nb::bytes(self.bytes.data(), self.bytes.size()); });
  nb::class_<Stalled>(m, "Stalled").def_ro("stall", &Stalled::stall).def_ro("stalled_s", &Stalled::stalled_s);
  nb::class_<GroupLost>(m, "GroupLost").def_ro("shard", &GroupLost::shard);
  nb::class_<Failure>(m, "Failed").def_ro("kind", &Failure::kind).def_ro("message", &Failure::message);
}

}  // namespace

void AddSocketStats(nb::dict& dict, const UdpSocketStats& stats) {
  dict["datagrams_unsent"] = stats.datagrams_unsent;
  dict["errors_reported"] = stats.errors_reported;
}

void BindTransport(nb::module_& m) {
  nb::class_<ShardLink>(m, "ShardLink")
      .def(
          "__init__",
          [](ShardLink* self, PythonSocket& socket, uint16_t job, uint16_t epoch, uint32_t slot_first, uint16_t worker,
             uint32_t whole_lanes, std::string name) {
            new (self) ShardLink{&socket,
                                 {.job = job,
                                  .epoch = epoch,
                                  .slot_first = slot_first,
                                  .worker = worker,
                                  .whole_lanes = whole_lanes,
                                  .name = std::move(name)}};
          },
          "socket"_a, nb::kw_only(), "job"_a, "epoch"_a, "slot_first"_a, "worker"_a, "whole_lanes"_a, "name"_a,
          nb::keep_alive<1, 2>());
  BindEvents(m);

  const auto release_gil = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<SharedTransport>(m, "Transport")
      .def(
          "__init__",
          [](SharedTransport* self, const std::vector<ShardLink>& shards, uint16_t rank, uint32_t world_size,
             uint32_t slots_per_shard, uint32_t lanes_per_chunk, double warn_s, double deadline_s) {
            new (self) SharedTransport(
                MakeTransport(shards, rank, world_size, slots_per_shard, lanes_per_chunk, warn_s, deadline_s));
          },
          "shards"_a, nb::kw_only(), "rank"_a, "world_size"_a, "slots_per_shard"_a, "lanes_per_chunk"_a, "warn_s"_a,
          "deadline_s"_a)
      .def("deliver_order_message",
           [](SharedTransport& self, nb::bytes message) {
             self.transport->DeliverOrderMessage(std::string(message.c_str(), message.size()));
           })
      .def("note_stall", [](SharedTransport& self, std::string note) { self.transport->NoteStall(std::move(note)); })
      .def("fail",
           [](SharedTransport& self, std::string kind, std::string message) {
             self.transport->Fail({std::move(kind), std::move(message)});
           })
      .def("failure", [](const SharedTransport& self) { return Pair(self.transport->failure()); })
      .def(
          "wait_event", [](SharedTransport& self, double timeout_s) { return self.transport->WaitEvent(timeout_s); },
          release_gil)
      .def(
          "drain", [](SharedTransport& self, double timeout_s) { return self.transport->Drain(timeout_s); },
          release_gil)
      .def("stats",
           [](const SharedTransport& self) {
             const auto [stats, socket] = [&] {
               const nb::gil_scoped_release release;  // the transport may be busy
               return std::pair(self.transport->stats(), self.transport->socket_stats());
             }();
             nb::dict dict = StatsDict(stats);
             AddSocketStats(dict, socket);
             return dict;
           })
      .def(
          "close", [](SharedTransport& self) { self.transport->Close(); }, release_gil);

  m.def(
      "attach",
      [](const SharedTransport& self, double deadline_s, const std::vector<SharedTransport>& flat, uint32_t rank,
         int64_t first_device_id) {
        std::vector<std::shared_ptr<Transport>> all{self.transport};
        for (const SharedTransport& rank : flat) all.push_back(rank.transport);
        std::shared_ptr<Collective> devices;
        if (!flat.empty()) {
          devices =
              std::make_shared<FlatCollective>(std::vector<std::shared_ptr<Collective>>(all.begin() + 1, all.end()));
        }
        // A session fails as a whole.
        const auto failure = [all]() -> std::optional<Failure> {
          for (const auto& transport : all) {
            if (auto found = transport->failure()) return found;
          }
          return std::nullopt;
        };
        const auto fail = [all](const Failure& failure) {
          for (const auto& transport : all) transport->Fail(failure);
        };
        AttachOrThrow({.collective = self.transport,
                       .flat = std::move(devices),
                       .failure = failure,
                       .fail = fail,
                       .deadline_s = deadline_s,
                       .rank = rank,
                       .first_device_id = first_device_id});
      },
      "collective"_a, "deadline_s"_a, "flat"_a = std::vector<SharedTransport>(), nb::kw_only(), "rank"_a = 0,
      "first_device_id"_a = 0);
}

}  // namespace passing
