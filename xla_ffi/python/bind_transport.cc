// The transport of a session: its events, its counters.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "host/transport/striped_transport.h"
#include "net/udp_socket.h"
#include "python/bind_slots.h"
#include "python/bind_socket.h"
#include "python/bindings.h"
#include "python/stats.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

// The job at one switch, and the way there.
struct ShardLink {
  PythonSocket* socket;
  Shard shard;
};

// Python holds it through a shared_ptr of its own: a sum under way may outlive the Python object.
using SharedTransport = std::shared_ptr<StripedTransport>;

std::optional<std::pair<std::string, std::string>> Pair(const std::optional<Failure>& failure) {
  if (!failure) return std::nullopt;
  return std::pair(failure->kind, failure->message);
}

// `keys`: of each thread, or none.
template <typename Key>
void CopyKey(const std::vector<nb::bytes>& keys, size_t thread, const std::string& what, std::optional<Key>& key) {
  if (keys.empty()) return;
  key.emplace();
  if (thread >= keys.size() || keys[thread].size() != key->size()) {
    throw std::invalid_argument("a key of " + what + " is missing, or has another length");
  }
  std::memcpy(key->data(), keys[thread].data(), key->size());
}

void MakeTransport(SharedTransport* self, const std::vector<ShardLink>& links, const std::string& job, uint16_t rank,
                   uint32_t world_size, uint32_t slots_per_shard, uint32_t lanes_per_chunk, double warn_s,
                   double deadline_s, const std::vector<nb::bytes>& check_keys, const std::vector<nb::bytes>& mask_keys,
                   uint64_t seed, bool check_nans, uint32_t ranks_at_port, uint32_t threads) {
  RankOptions options{.job = {.name = job,
                              .rank = rank,
                              .world_size = world_size,
                              .ranks_at_port = ranks_at_port,
                              .shards = {},
                              .slots_per_shard = slots_per_shard,
                              .lanes_per_chunk = lanes_per_chunk,
                              .seed = seed,
                              .check_nans = check_nans},
                      .warn_s = warn_s,
                      .deadline_s = deadline_s};
  std::vector<StripedTransport::Keys> keys(threads);
  for (uint32_t thread = 0; thread < threads; ++thread) {
    CopyKey(check_keys, thread, "sums", keys[thread].check);
    CopyKey(mask_keys, thread, "masks", keys[thread].mask);
  }
  std::vector<UdpSocket> sockets;
  std::vector<std::optional<UdpSocket>> groups;
  for (const ShardLink& link : links) {
    auto [socket, group] = link.socket->Take();
    options.job.shards.push_back(link.shard);
    sockets.push_back(std::move(socket));
    groups.push_back(std::move(group));
  }
  new (self) SharedTransport(std::make_shared<StripedTransport>(std::move(sockets), options, std::move(groups), keys));
}

void BindEvents(nb::module_& m) {
  nb::class_<Stall>(m, "Stall")
      .def_ro("site_name", &Stall::site_name)
      .def_prop_ro("execution", [](const Stall& self) { return self.key.execution; })
      .def_prop_ro("step", [](const Stall& self) { return self.key.step; })
      .def_ro("waits_for_gpu", &Stall::waits_for_gpu)
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
  nb::class_<NonFinite>(m, "NonFinite")
      .def_prop_ro("site_name", [](const NonFinite& self) { return self.spec->site_name; })
      .def_prop_ro("identity", [](const NonFinite& self) { return self.spec->identity; })
      .def_prop_ro("execution", [](const NonFinite& self) { return self.key.execution; })
      .def_prop_ro("step", [](const NonFinite& self) { return self.key.step; })
      .def_ro("leaf", &NonFinite::leaf)
      .def_ro("element", &NonFinite::element)
      .def_ro("what", &NonFinite::what);
  nb::class_<Failure>(m, "Failure").def_ro("kind", &Failure::kind).def_ro("message", &Failure::message);
}

}  // namespace

void BindTransport(nb::module_& m) {
  nb::class_<ShardLink>(m, "ShardLink")
      .def(
          "__init__",
          [](ShardLink* self, PythonSocket& socket, uint16_t job, uint16_t epoch, uint32_t slot_first, uint16_t worker,
             uint32_t whole_lanes, std::string name, const std::optional<MemberKeyBytes>& keys, bool bare) {
            new (self) ShardLink{&socket,
                                 {.job = job,
                                  .epoch = epoch,
                                  .slot_first = slot_first,
                                  .worker = worker,
                                  .whole_lanes = whole_lanes,
                                  .name = std::move(name),
                                  .keys = KeysOf(keys),
                                  .bare = bare}};
          },
          "socket"_a, nb::kw_only(), "job"_a, "epoch"_a, "slot_first"_a, "worker"_a, "whole_lanes"_a, "name"_a,
          "keys"_a.none() = nb::none(), "bare"_a = false, nb::keep_alive<1, 2>());
  BindEvents(m);
  m.attr("SUM_BYTES_MAX") = std::vector<uint64_t>(SumTimes::kMaxBytes.begin(), SumTimes::kMaxBytes.end());
  m.attr("SUM_US_MAX") = std::vector<int64_t>(SumTimes::kMaxUs.begin(), SumTimes::kMaxUs.end());

  const auto release_gil = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<SharedTransport>(m, "Transport")
      .def("__init__", MakeTransport, "shards"_a, nb::kw_only(), "job"_a, "rank"_a, "world_size"_a, "slots_per_shard"_a,
           "lanes_per_chunk"_a, "warn_s"_a, "deadline_s"_a, "check_keys"_a = std::vector<nb::bytes>{},
           "mask_keys"_a = std::vector<nb::bytes>{}, "seed"_a = 0, "check_nans"_a = false, "ranks_at_port"_a = 1,
           "threads"_a = 1)
      .def("deliver_order_message",
           [](SharedTransport& self, nb::bytes message) {
             self->DeliverOrderMessage(std::string(message.c_str(), message.size()));
           })
      .def("note_stall", [](SharedTransport& self, std::string note) { self->NoteStall(std::move(note)); })
      .def("fail",
           [](SharedTransport& self, std::string kind, std::string message) {
             self->Fail({std::move(kind), std::move(message)});
           })
      .def("failure", [](const SharedTransport& self) { return Pair(self->failure()); })
      .def(
          "wait_event", [](SharedTransport& self, double timeout_s) { return self->WaitEvent(timeout_s); }, release_gil)
      .def(
          "drain", [](SharedTransport& self, double timeout_s) { return self->Drain(timeout_s); }, release_gil)
      .def("stats",
           [](const SharedTransport& self) {
             const auto [stats, socket] = [&] {
               const nb::gil_scoped_release release;  // the transport may be busy
               return std::pair(self->stats(), self->socket_stats());
             }();
             nb::dict dict = StatsDict(stats);
             AddSocketStats(dict, socket);
             return dict;
           })
      .def("times",
           [](const SharedTransport& self) {
             const SumTimes::BySize times = [&] {
               const nb::gil_scoped_release release;  // the transport may be busy
               return self->times();
             }();
             std::vector<std::pair<std::vector<uint64_t>, int64_t>> result;
             for (const SumTimes::OfSize& of_size : times) {
               result.emplace_back(std::vector<uint64_t>(of_size.counts.begin(), of_size.counts.end()),
                                   of_size.total_us);
             }
             return result;
           })
      .def("oldest",
           [](const SharedTransport& self) {
             const nb::gil_scoped_release release;  // the transport may be busy
             return self->Oldest();
           })
      .def(
          "close", [](SharedTransport& self) { self->Close(); }, release_gil);
}

}  // namespace passing
