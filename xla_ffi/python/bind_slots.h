// Converts a job's slots and keys between Python and C++, for a slot pool, a switch and a host.
#ifndef XLA_FFI_PYTHON_BIND_SLOTS_H_
#define XLA_FFI_PYTHON_BIND_SLOTS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "net/socket_address.h"
#include "switch/slot_pool.h"
#include "wire/packet_key.h"

namespace passing {

using HostPort = std::pair<std::string, uint16_t>;

inline Address Resolved(const HostPort& address) { return NumericAddress(address.first, address.second); }

inline wire::PacketKey KeyOf(const nanobind::bytes& bytes) {
  if (bytes.size() != wire::PacketKey::kBytes) throw std::invalid_argument("a packet key has another length");
  return wire::PacketKey(
      std::span<const uint8_t, wire::PacketKey::kBytes>(static_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

// The keys of contributions and of results.
using MemberKeyBytes = std::pair<nanobind::bytes, nanobind::bytes>;
using JobKeyBytes = std::pair<std::vector<nanobind::bytes>, nanobind::bytes>;

inline std::optional<wire::MemberKeys> KeysOf(const std::optional<MemberKeyBytes>& keys) {
  if (!keys) return std::nullopt;
  return wire::MemberKeys{.contribution = KeyOf(keys->first), .result = KeyOf(keys->second)};
}

inline std::optional<JobKeys> KeysOf(const std::optional<JobKeyBytes>& keys) {
  if (!keys) return std::nullopt;
  JobKeys of_job{.contributions = {}, .results = KeyOf(keys->second)};
  for (const nanobind::bytes& contribution : keys->first) of_job.contributions.push_back(KeyOf(contribution));
  return of_job;
}

inline JobSlots SlotsOf(uint16_t job, uint16_t epoch, uint32_t slot_first, uint32_t slot_count,
                        const std::vector<HostPort>& workers, const std::optional<JobKeyBytes>& keys, uint32_t reach,
                        uint32_t lanes_per_chunk) {
  JobSlots slots{.job = job,
                 .epoch = epoch,
                 .slot_first = slot_first,
                 .slot_count = slot_count,
                 .lanes_per_chunk = lanes_per_chunk,
                 .addresses = {},
                 .keys = KeysOf(keys),
                 .reach = reach};
  for (const HostPort& worker : workers) slots.addresses.push_back(Resolved(worker));
  return slots;
}

inline nanobind::tuple VersionTuple(const SlotVersion& held) {
  return nanobind::make_tuple(held.empty, held.sequence, held.bitmap, held.complete);
}

}  // namespace passing

#endif  // XLA_FFI_PYTHON_BIND_SLOTS_H_
