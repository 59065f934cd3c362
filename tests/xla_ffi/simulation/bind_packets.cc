// The Python module _simulation: the packets of a simulated cluster, for tests/simulation.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "../tests/xla_ffi/simulation/packets.h"
#include "python/bind_slots.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing::simulation {
namespace {

using MachinePort = std::pair<uint32_t, uint16_t>;

Endpoint EndpointOf(const MachinePort& at) { return {at.first, at.second}; }
std::optional<Endpoint> EndpointOf(const std::optional<MachinePort>& place) {
  return place ? std::optional(EndpointOf(*place)) : std::nullopt;
}

Faults FaultsOf(double loss, double duplicate, double reorder, int64_t delay_us, int64_t reorder_us, double flip,
                bool brings_flipped, double stale, int64_t stale_us) {
  return {.loss = loss,
          .duplicate = duplicate,
          .reorder = reorder,
          .delay_us = delay_us,
          .reorder_us = reorder_us,
          .flip = flip,
          .brings_flipped = brings_flipped,
          .stale = stale,
          .stale_us = stale_us};
}

nb::object TupleOf(uint32_t who, const OrderMessage& order) {
  return nb::make_tuple("order", who, nb::bytes(order.bytes.data(), order.bytes.size()));
}
nb::object TupleOf(uint32_t, const ProgramInfo&) { return nb::none(); }  // none is announced
nb::object TupleOf(uint32_t who, const Stalled& stalled) {
  const Stall& stall = stalled.stall;
  return nb::make_tuple("stalled", who, stalled.stalled_s,
                        nb::make_tuple(stall.site_name, stall.key.execution, stall.key.step, stall.waits_for_gpu,
                                       stall.waits_for_order, stall.shard, stall.slot, stall.version, stall.sequence));
}
nb::object TupleOf(uint32_t who, const GroupLost& lost) { return nb::make_tuple("group_lost", who, lost.shard); }
nb::object TupleOf(uint32_t, const NonFinite&) { return nb::none(); }  // nobody checks
nb::object TupleOf(uint32_t who, const Failure& failure) {
  return nb::make_tuple("failed", who, failure.kind, failure.message);
}
nb::object TupleOf(uint32_t who, const Heard&) { return nb::make_tuple("heard", who); }
nb::object TupleOf(uint32_t who, const Executed& executed) {
  return nb::make_tuple("executed", who, executed.execution);
}
nb::object TupleOf(uint32_t who, const Violation& violation) {
  return nb::make_tuple("violation", who, violation.text);
}
template <typename... Whats>
nb::object TupleOf(uint32_t who, const std::variant<Whats...>& what) {
  return std::visit([who](const auto& one) { return TupleOf(who, one); }, what);
}

void AddJob(
    Packets& self, uint32_t number, uint16_t job, uint16_t epoch, uint32_t slot_first, uint32_t slot_count,
    const std::vector<MachinePort>& workers, const std::optional<MachinePort>& group,
    const std::optional<std::tuple<uint16_t, uint16_t, uint32_t, uint16_t, uint32_t, std::optional<MemberKeyBytes>>>&
        parent,
    const std::optional<JobKeyBytes>& keys, uint64_t first_position, uint32_t reach, uint32_t lanes_per_chunk) {
  JobSlots slots{.job = job,
                 .epoch = epoch,
                 .slot_first = slot_first,
                 .slot_count = slot_count,
                 .lanes_per_chunk = lanes_per_chunk,
                 .addresses = {},
                 .keys = KeysOf(keys),
                 .first_position = first_position,
                 .reach = reach};
  uint32_t uplink = 0;
  if (parent) {
    const auto& [parent_job, parent_epoch, parent_slot_first, worker, socket, parent_keys] = *parent;
    slots.parent = {.job = parent_job,
                    .epoch = parent_epoch,
                    .slot_first = parent_slot_first,
                    .worker = worker,
                    .address = {},
                    .keys = KeysOf(parent_keys)};
    uplink = socket;
  }
  std::vector<Endpoint> endpoints;
  for (const MachinePort& worker : workers) endpoints.push_back(EndpointOf(worker));
  self.AddJob(number, std::move(slots), endpoints, EndpointOf(group), uplink);
}

// `shards`: socket, job, epoch, first slot, worker, whole lanes, keys at each switch, and whether it takes bare
// packets.
uint32_t AddHost(Packets& self, uint16_t rank, uint32_t world_size,
                 const std::vector<std::tuple<uint32_t, uint16_t, uint16_t, uint32_t, uint16_t, uint32_t,
                                              std::optional<MemberKeyBytes>, bool>>& shards,
                 uint32_t slots_per_shard, uint32_t lanes_per_chunk, const std::optional<nb::bytes>& check_key,
                 const std::optional<nb::bytes>& mask_key, uint64_t first_position, uint32_t incarnation, double warn_s,
                 double deadline_s, uint64_t seed, bool check_nans, uint32_t ranks_at_port) {
  RankOptions options{.job = {.rank = rank,
                              .world_size = world_size,
                              .ranks_at_port = ranks_at_port,
                              .shards = {},
                              .slots_per_shard = slots_per_shard,
                              .lanes_per_chunk = lanes_per_chunk,
                              .seed = seed,
                              .check_nans = check_nans,
                              .first_position = first_position},
                      .warn_s = warn_s,
                      .deadline_s = deadline_s};
  JobConfig& config = options.job;
  if (check_key) std::memcpy(config.check_key.emplace().data(), check_key->data(), SumCheck::kKeyBytes);
  if (mask_key) std::memcpy(config.mask_key.emplace().data(), mask_key->data(), Aes::kKeyBytes);
  std::vector<uint32_t> sockets;
  for (const auto& [socket, job, epoch, slot_first, worker, whole_lanes, keys, bare] : shards) {
    sockets.push_back(socket);
    config.shards.push_back({.job = job,
                             .epoch = epoch,
                             .slot_first = slot_first,
                             .worker = worker,
                             .whole_lanes = whole_lanes,
                             .name = "switch " + std::to_string(sockets.size()),
                             .keys = KeysOf(keys),
                             .bare = bare});
  }
  return self.AddHost(options, sockets, incarnation);
}

}  // namespace

NB_MODULE(_simulation, m) {
  nb::class_<Faults>(m, "Faults")
      .def(
          "__init__",
          [](Faults* self, double loss, double duplicate, double reorder, int64_t delay_us, int64_t reorder_us,
             double flip, bool brings_flipped, double stale, int64_t stale_us) {
            new (self)
                Faults(FaultsOf(loss, duplicate, reorder, delay_us, reorder_us, flip, brings_flipped, stale, stale_us));
          },
          nb::kw_only(), "loss"_a, "duplicate"_a, "reorder"_a, "delay_us"_a, "reorder_us"_a, "flip"_a,
          "brings_flipped"_a, "stale"_a, "stale_us"_a);
  nb::class_<Neighbour>(m, "Neighbour").def_prop_ro("acknowledged_bytes", &Neighbour::acknowledged_bytes);
  nb::class_<Packets>(m, "Packets")
      .def(
          "__init__",
          [](Packets* self, uint64_t seed, const Faults& up, const Faults& down, double forge, bool from_anywhere,
             bool plain) {
            new (self) Packets(seed, up, down, {.forge = forge, .from_anywhere = from_anywhere}, plain);
          },
          "seed"_a, "up"_a, "down"_a, nb::kw_only(), "forge"_a = 0, "from_anywhere"_a = false, "plain"_a = false)
      .def_prop_ro("now_us", &Packets::now_us)
      .def(
          "run",
          [](Packets& self, int64_t until_us) {
            self.Run(until_us);
            nb::list events;
            for (const Event& event : self.Take()) events.append(TupleOf(event.who, event.what));
            return events;
          },
          "until_us"_a)
      .def("pause", &Packets::Pause, "machine"_a, "until_us"_a)
      .def("block", &Packets::Block, "from_machine"_a, "to_machine"_a, "until_us"_a)
      .def(
          "add_link",
          [](Packets& self, uint32_t machine, double gbit, int64_t delay_us, int64_t buffer_bytes, double packet_us) {
            self.AddLink(machine, {.bytes_per_us = gbit * 125,
                                   .delay_us = delay_us,
                                   .buffer_bytes = buffer_bytes,
                                   .packet_us = packet_us});
          },
          "machine"_a, nb::kw_only(), "gbit"_a, "delay_us"_a, "buffer_bytes"_a, "packet_us"_a)
      .def(
          "lost", [](const Packets& self, uint32_t machine) { return self.links().lost(machine); }, "machine"_a)
      .def(
          "add_neighbour", [](Packets& self, uint32_t from, uint32_t to) { return &self.AddNeighbour(from, to); },
          "from_machine"_a, "to_machine"_a, nb::rv_policy::reference_internal)
      .def(
          "host_packets",
          [](const Packets& self, uint32_t host) {
            const AllReduceStats stats = self.RankOf(host).stats();
            return std::pair(stats.packets_sent, stats.packets_resent);
          },
          "host"_a)
      .def(
          "open",
          [](Packets& self, const MachinePort& own, const MachinePort& peer) {
            return self.Open(EndpointOf(own), EndpointOf(peer));
          },
          "own"_a, "peer"_a)
      .def("close", &Packets::Close, "socket"_a)
      .def(
          "join_group",
          [](Packets& self, uint32_t socket, const MachinePort& group, uint16_t job, uint16_t epoch, uint32_t nonce) {
            self.JoinGroup(socket, EndpointOf(group), {.job = job, .epoch = epoch, .nonce = nonce});
          },
          "socket"_a, "group"_a, nb::kw_only(), "job"_a, "epoch"_a, "nonce"_a)
      .def("hears_group", &Packets::HearsGroup, "socket"_a)
      .def("leave_group", &Packets::LeaveGroup, "socket"_a)
      .def(
          "add_switch",
          [](Packets& self, const MachinePort& own, uint32_t slot_count, uint32_t whole_lanes) {
            return self.AddSwitch(EndpointOf(own), slot_count, whole_lanes);
          },
          "own"_a, nb::kw_only(), "slot_count"_a, "whole_lanes"_a = 0)
      .def("remove_switch", &Packets::RemoveSwitch, "switch"_a)
      .def("add_job", &AddJob, "switch"_a, nb::kw_only(), "job"_a, "epoch"_a, "slot_first"_a, "slot_count"_a,
           "workers"_a, "group"_a = nb::none(), "parent"_a = nb::none(), "keys"_a = nb::none(), "first_position"_a = 0,
           "reach"_a, "lanes_per_chunk"_a)
      .def("remove_job", &Packets::RemoveJob, "switch"_a, "job"_a)
      .def("stop_multicast", &Packets::StopMulticast, "switch"_a, "job"_a)
      .def(
          "hears_parents_group",
          [](const Packets& self, uint32_t number, uint16_t job) { return self.CoreOf(number).HearsParentsGroup(job); },
          "switch"_a, "job"_a)
      .def(
          "probe",
          [](Packets& self, uint32_t number, const MachinePort& group, uint16_t job, uint16_t epoch, uint32_t nonce,
             uint16_t lanes) {
            self.Probe(number, EndpointOf(group), {.job = job, .epoch = epoch, .nonce = nonce}, lanes);
          },
          "switch"_a, "group"_a, nb::kw_only(), "job"_a, "epoch"_a, "nonce"_a, "lanes"_a)
      .def(
          "slot_version",
          [](const Packets& self, uint32_t number, uint32_t slot, uint8_t version) {
            return VersionTuple(self.CoreOf(number).VersionOf(slot, version));
          },
          "switch"_a, "slot"_a, "version"_a)
      .def(
          "stats",
          [](const Packets& self, uint32_t number) {
            nb::dict counts;
            for (int i = 0; i < kVerdictCount; ++i) {
              const auto verdict = static_cast<Verdict>(i);
              counts[Name(verdict)] = self.CoreOf(number).Count(verdict);
            }
            return counts;
          },
          "switch"_a)
      .def(
          "add_site",
          [](Packets& self, const std::string& dtype, std::vector<uint64_t> leaves, uint32_t device_count, bool maxima,
             const std::string& wire_dtype, const std::string& moves, bool early) {
            return self.AddSite(*ParseDType(dtype), std::move(leaves), device_count, maxima ? Op::kMax : Op::kSum,
                                *ParseWireDtype(wire_dtype),
                                moves == "gather"    ? Moves::kGather
                                : moves == "scatter" ? Moves::kScatter
                                                     : Moves::kAll,
                                early);
          },
          "dtype"_a, "leaves"_a, "device_count"_a, "maxima"_a, "wire"_a, "moves"_a, "early"_a)
      .def("add_host", &AddHost, nb::kw_only(), "rank"_a, "world_size"_a, "shards"_a, "slots_per_shard"_a,
           "lanes_per_chunk"_a, "check_key"_a = nb::none(), "mask_key"_a = nb::none(), "first_position"_a = 0,
           "incarnation"_a, "warn_s"_a = 5, "deadline_s"_a = 60, "seed"_a = 0, "check_nans"_a = false,
           "ranks_at_port"_a = 1)
      .def("execute", &Packets::Execute, "host"_a, "execution"_a, "sites"_a, "spread_us"_a)
      .def(
          "order_message",
          [](Packets& self, uint32_t host, const nb::bytes& message) {
            self.OnOrderMessage(host, {static_cast<const uint8_t*>(message.data()), message.size()});
          },
          "host"_a, "message"_a)
      .def("note_stall", &Packets::NoteStall, "host"_a, "note"_a)
      .def(
          "fail",
          [](Packets& self, uint32_t host, std::string kind, std::string message) {
            self.Fail(host, {std::move(kind), std::move(message)});
          },
          "host"_a, "kind"_a, "message"_a)
      .def("remove_host", &Packets::RemoveHost, "host"_a)
      .def_prop_ro("socket_count", &Packets::socket_count)
      .def_prop_ro("host_count", &Packets::host_count)
      .def_prop_ro("packets", &Packets::packets)
      .def_prop_ro("flipped", &Packets::flipped)
      .def_prop_ro("forged", &Packets::forged)
      .def_prop_ro("sums_right", &Packets::sums_right)
      .def_prop_ro("sums_failed", &Packets::sums_failed);
}

}  // namespace passing::simulation
