// What Python says of a job's slots and is told of them, to a slot pool as to a switch.
#ifndef XLA_FFI_PYTHON_BIND_SLOTS_H_
#define XLA_FFI_PYTHON_BIND_SLOTS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "net/socket_address.h"
#include "switch/slot_pool.h"

namespace passing {

using HostPort = std::pair<std::string, uint16_t>;

inline Address Resolved(const HostPort& address) { return NumericAddress(address.first, address.second); }

inline JobSlots SlotsOf(uint16_t job, uint16_t epoch, uint32_t slot_first, uint32_t slot_count,
                        const std::vector<HostPort>& workers) {
  JobSlots slots{.job = job, .epoch = epoch, .slot_first = slot_first, .slot_count = slot_count, .addresses = {}};
  for (const HostPort& worker : workers) slots.addresses.push_back(Resolved(worker));
  return slots;
}

inline nanobind::tuple VersionTuple(const SlotVersion& held) {
  return nanobind::make_tuple(held.empty, held.sequence, held.bitmap, held.complete);
}

}  // namespace passing

#endif  // XLA_FFI_PYTHON_BIND_SLOTS_H_
