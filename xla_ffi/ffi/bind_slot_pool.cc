// The packet and the slot pool without a socket, for conformance tests: what a switch does with a packet.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "ffi/bindings.h"
#include "net/udp_socket.h"
#include "switch/slot_pool.h"
#include "wire/header.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

using HostPort = std::pair<std::string, uint16_t>;

std::span<const uint8_t> Span(const nb::bytes& bytes) {
  return {static_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

nb::dict FieldsDict(const wire::Header& header) {
  nb::dict dict;
  dict["type"] = static_cast<int>(header.type);
  dict["flags"] = header.flags;
  dict["job"] = header.job;
  dict["epoch"] = header.epoch;
  dict["worker"] = header.worker;
  dict["slot"] = header.slot;
  dict["sequence"] = header.sequence;
  dict["version"] = header.version;
  dict["lane_format"] = static_cast<int>(header.lane_format);
  dict["element_count"] = header.element_count;
  return dict;
}

}  // namespace

void BindSlotPool(nb::module_& m) {
  m.def(
      "decode_header",
      [](const nb::bytes& packet) {
        wire::Header header;
        const wire::DecodeError error = wire::Decode(Span(packet), header);
        return nb::make_tuple(wire::Name(error), FieldsDict(header));
      },
      "packet"_a);
  nb::class_<SlotPool>(m, "SlotPool")
      .def(nb::init<uint32_t>(), "slot_count"_a)
      .def(
          "add_job",
          [](SlotPool& self, uint16_t job, uint16_t epoch, uint32_t slot_first, uint32_t slot_count,
             const std::vector<HostPort>& addresses) {
            JobSlots slots{
                .job = job, .epoch = epoch, .slot_first = slot_first, .slot_count = slot_count, .addresses = {}};
            for (const auto& [host, port] : addresses) slots.addresses.push_back(ResolveAddress(host, port));
            self.AddJob(slots);
          },
          nb::kw_only(), "job"_a, "epoch"_a, "slot_first"_a, "slot_count"_a, "addresses"_a)
      .def(
          "on_packet",
          [](SlotPool& self, const nb::bytes& packet, const HostPort& source) {
            const Action action = self.OnPacket(Span(packet), ResolveAddress(source.first, source.second));
            return nb::make_tuple(Name(action.verdict), action.job, action.worker,
                                  nb::bytes(action.result.data(), action.result.size()));
          },
          "packet"_a, "source"_a);
}

}  // namespace passing
