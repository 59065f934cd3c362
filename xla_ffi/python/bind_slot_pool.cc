// The slot pool without a socket, for the conformance suite: what a switch does with a packet.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "python/bind_slots.h"
#include "python/bindings.h"
#include "switch/slot_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

using Parent = std::tuple<uint16_t, uint16_t, uint32_t, uint16_t, HostPort>;

std::span<const uint8_t> Span(const nb::bytes& bytes) {
  return {static_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

const char* Name(SendTo to) {
  switch (to) {
    case SendTo::kNobody:
      return "nobody";
    case SendTo::kEveryWorker:
      return "every_worker";
    case SendTo::kWorker:
      return "worker";
    case SendTo::kParent:
      return "parent";
  }
  return "unknown";
}

}  // namespace

void BindSlotPool(nb::module_& m) {
  nb::class_<SlotPool>(m, "SlotPool")
      .def(nb::init<uint32_t>(), "slot_count"_a)
      .def(
          "add_job",
          [](SlotPool& self, uint16_t job, uint16_t epoch, uint32_t slot_first, uint32_t slot_count,
             const std::vector<HostPort>& addresses, const std::optional<Parent>& parent,
             const std::optional<JobKeyBytes>& keys, const std::optional<MemberKeyBytes>& parent_keys, uint32_t reach,
             uint32_t lanes_per_chunk) {
            JobSlots slots = SlotsOf(job, epoch, slot_first, slot_count, addresses, keys, reach, lanes_per_chunk);
            if (parent) {
              const auto& [parent_job, parent_epoch, parent_slot_first, worker, address] = *parent;
              slots.parent = {.job = parent_job,
                              .epoch = parent_epoch,
                              .slot_first = parent_slot_first,
                              .worker = worker,
                              .address = Resolved(address),
                              .keys = KeysOf(parent_keys)};
            }
            self.AddJob(slots);
          },
          nb::kw_only(), "job"_a, "epoch"_a, "slot_first"_a, "slot_count"_a, "addresses"_a, "parent"_a.none(),
          "keys"_a.none() = nb::none(), "parent_keys"_a.none() = nb::none(), "reach"_a = JobSlots{}.reach,
          "lanes_per_chunk"_a = JobSlots{}.lanes_per_chunk)
      .def("remove_job", &SlotPool::RemoveJob, "job"_a)
      .def(
          "slot_version",
          [](const SlotPool& self, uint32_t slot, uint8_t version) {
            return VersionTuple(self.VersionOf(slot, version));
          },
          "slot"_a, "version"_a)
      .def(
          "on_packet",
          [](SlotPool& self, const nb::bytes& packet, const HostPort& source) {
            const Action action = self.OnPacket(Span(packet), Resolved(source));
            return nb::make_tuple(Name(action.verdict), Name(action.to), action.job, action.worker,
                                  nb::bytes(action.packet.data(), action.packet.size()), action.bare_workers,
                                  nb::bytes(action.bare.data(), action.bare.size()));
          },
          "packet"_a, "source"_a);
}

}  // namespace passing
