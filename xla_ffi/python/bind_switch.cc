// The software data plane, for the control plane in Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/socket_address.h"
#include "python/bind_slots.h"
#include "python/bind_socket.h"
#include "python/bindings.h"
#include "python/stats.h"
#include "switch/udp_switch.h"
#include "wire/probe.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

nb::dict SwitchStatsDict(const UdpSwitchStats& stats) {
  nb::dict dict;
  dict["packets_received"] = stats.packets_received;
  dict["bytes_received"] = stats.bytes_received;
  dict["packets_sent"] = stats.packets_sent;
  dict["bytes_sent"] = stats.bytes_sent;
  dict["packets_overflowed"] = stats.packets_overflowed;
  dict["results_multicast"] = stats.results_multicast;
  dict["paths_probed"] = stats.paths_probed;
  AddSocketStats(dict, stats.socket);
  for (int i = 0; i < kVerdictCount; ++i) dict[Name(static_cast<Verdict>(i))] = stats.verdicts[i];
  return dict;
}

nb::object CountsDict(const std::optional<JobCounts>& counts) {
  if (!counts) return nb::none();
  nb::list workers;
  for (const WorkerCounts& worker : counts->workers) {
    nb::dict of_worker;
    of_worker["contributions"] = worker.contributions;
    of_worker["resends"] = worker.resends;
    of_worker["last"] = worker.last;
    of_worker["waited_us"] = worker.waited_us;
    of_worker["silent_us"] = worker.silent_us;
    workers.append(of_worker);
  }
  nb::object oldest = nb::none();
  if (const auto& chunk = counts->oldest) {
    oldest = nb::make_tuple(chunk->slot, chunk->version, chunk->sequence, chunk->bitmap, chunk->waited_us);
  }
  nb::dict dict;
  dict["chunks"] = counts->chunks;
  dict["lanes"] = counts->lanes;
  dict["waiting"] = counts->waiting;
  dict["oldest"] = oldest;
  dict["workers"] = workers;
  return dict;
}

using Group = std::pair<HostPort, std::string>;

MulticastGroup ResolvedGroup(const Group& group) {
  return {.group = Resolved(group.first), .from = NumericAddress(group.second, 0)};
}

// The job at the parent, and the way there.
struct ParentLink {
  PythonSocket* socket;
  ParentJob job;
};

}  // namespace

void BindSwitch(nb::module_& m) {
  const auto release_gil = nb::call_guard<nb::gil_scoped_release>();
  // Packets side by side, and the size of all but the last.
  m.def(
      "probe_burst",
      [](uint16_t job, uint16_t epoch, uint32_t nonce, uint16_t lanes) {
        const wire::ProbeBurst burst = wire::MakeProbeBurst({.job = job, .epoch = epoch, .nonce = nonce}, lanes);
        return nb::make_tuple(nb::bytes(burst.bytes.data(), burst.bytes.size()), burst.packet_bytes.front());
      },
      nb::kw_only(), "job"_a, "epoch"_a, "nonce"_a, "lanes"_a);
  nb::class_<ParentLink>(m, "ParentLink")
      .def(
          "__init__",
          [](ParentLink* self, PythonSocket& socket, uint16_t job, uint16_t epoch, uint32_t slot_first, uint16_t worker,
             const std::optional<MemberKeyBytes>& keys) {
            new (self) ParentLink{&socket,
                                  {.job = job,
                                   .epoch = epoch,
                                   .slot_first = slot_first,
                                   .worker = worker,
                                   .address = {},
                                   .keys = KeysOf(keys)}};
          },
          "socket"_a, nb::kw_only(), "job"_a, "epoch"_a, "slot_first"_a, "worker"_a, "keys"_a.none() = nb::none(),
          nb::keep_alive<1, 2>());
  nb::class_<UdpSwitch>(m, "SoftwareDataPlane")
      .def(nb::init<const std::string&, uint16_t, uint32_t>(), "host"_a, "port"_a, "slot_count"_a)
      .def_prop_ro("port", &UdpSwitch::port)
      .def(
          "add_job",
          [](UdpSwitch& self, uint16_t job, uint16_t epoch, uint32_t slot_first, uint32_t slot_count,
             const std::vector<HostPort>& addresses, const std::optional<Group>& group, const ParentLink* parent,
             const std::optional<JobKeyBytes>& keys, uint32_t reach, const std::vector<std::string>& own_addresses,
             uint32_t lanes_per_chunk, bool ports_apart) {
            JobSlots slots = SlotsOf(job, epoch, slot_first, slot_count, addresses, keys, reach, lanes_per_chunk);
            std::vector<Address> own;
            for (const std::string& address : own_addresses) own.push_back(NumericAddress(address, 0));
            const nb::gil_scoped_release release;  // the switch may be busy
            std::optional<Uplink> uplink;
            if (parent != nullptr) {
              auto [socket, parent_group] = parent->socket->Take();
              uplink = {.socket = std::move(socket), .group = std::move(parent_group)};
              slots.parent = parent->job;
            }
            self.AddJob(slots, group ? std::optional(ResolvedGroup(*group)) : std::nullopt, std::move(uplink),
                        std::move(own), ports_apart);
          },
          nb::kw_only(), "job"_a, "epoch"_a, "slot_first"_a, "slot_count"_a, "addresses"_a, "group"_a.none(),
          "parent"_a.none(), "keys"_a.none() = nb::none(), "reach"_a = JobSlots{}.reach, "own_addresses"_a,
          "lanes_per_chunk"_a, "ports_apart"_a = false)
      .def(
          "probe",
          [](UdpSwitch& self, const Group& group, uint16_t job, uint16_t epoch, uint32_t nonce, uint16_t lanes) {
            self.Probe(ResolvedGroup(group), {.job = job, .epoch = epoch, .nonce = nonce}, lanes);
          },
          nb::kw_only(), "group"_a, "job"_a, "epoch"_a, "nonce"_a, "lanes"_a, release_gil)
      .def(
          "path_nonce",
          [](const UdpSwitch& self, const std::string& host) { return self.PathNonce(NumericAddress(host, 0)); },
          "host"_a)
      .def("stop_multicast", &UdpSwitch::StopMulticast, "job"_a, release_gil)
      .def("hears_parents_group", &UdpSwitch::HearsParentsGroup, "job"_a)
      .def("remove_job", &UdpSwitch::RemoveJob, "job"_a, release_gil)
      .def(
          "slot_version",
          [](const UdpSwitch& self, uint32_t slot, uint8_t version) {
            return VersionTuple(self.VersionOf(slot, version));
          },
          "slot"_a, "version"_a)
      .def(
          "counts", [](UdpSwitch& self, uint16_t job) { return CountsDict(self.CountsOf(job)); }, "job"_a)
      .def("stats", [](const UdpSwitch& self) { return SwitchStatsDict(self.stats()); })
      .def("overflows", &UdpSwitch::Overflows)
      .def("close", &UdpSwitch::Close, release_gil);
}

}  // namespace passing
