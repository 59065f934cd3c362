// Packets to a slot pool, with tags and without.
#ifndef TESTS_XLA_FFI_SWITCH_SLOT_PACKETS_H_
#define TESTS_XLA_FFI_SWITCH_SLOT_PACKETS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/wire/random_key.h"
#include "switch/slot_pool.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {

using Lanes = std::vector<int32_t>;
using wire::LaneFormat;

inline Address AddressOf(uint16_t job, uint16_t worker) {
  Address address;
  address.size = 16;
  address.bytes[0] = static_cast<uint8_t>(job);
  address.bytes[1] = static_cast<uint8_t>(worker);
  return address;
}

inline JobSlots MakeJob(uint16_t job, uint32_t workers, uint32_t slot_first = 0, uint32_t slot_count = 4,
                        uint16_t epoch = 1) {
  JobSlots slots{.job = job, .epoch = epoch, .slot_first = slot_first, .slot_count = slot_count, .addresses = {}};
  for (uint32_t worker = 0; worker < workers; ++worker) {
    slots.addresses.push_back(AddressOf(job, static_cast<uint16_t>(worker)));
  }
  return slots;
}

struct Packet {
  wire::Header header;
  Lanes lanes;
};

inline std::vector<uint8_t> Bytes(const Packet& packet) {
  wire::Header header = packet.header;
  header.element_count = static_cast<uint16_t>(packet.lanes.size());
  std::vector<uint8_t> bytes(wire::kHeaderBytes + size_t{4} * header.lanes_carried());
  wire::Encode(header, bytes.data());
  for (size_t i = 0; i < header.lanes_carried(); ++i) {
    wire::StoreLane(&bytes[wire::kHeaderBytes], i, static_cast<uint32_t>(packet.lanes[i]));
  }
  return bytes;
}

inline std::vector<uint8_t> Result(wire::Header header, const Lanes& lanes) {
  header.type = wire::PacketType::kResult;
  header.worker = wire::kEveryWorker;
  return Bytes({header, lanes});
}

// A contribution of job 3, epoch 1, in slot 1, version 0, sequence 9, unless a test says otherwise.
inline Packet From(uint16_t worker, Lanes lanes = {5, -7}) {
  return {{.job = 3, .epoch = 1, .worker = worker, .slot = 1, .sequence = 9}, std::move(lanes)};
}
inline Packet With(Packet packet, auto change) {
  change(packet.header);
  return packet;
}
inline Packet AtSequence(uint32_t sequence, Packet packet) {
  packet.header.sequence = sequence;
  return packet;
}

// Job 3 at its parent: job 12, epoch 7, slots from 40, worker 5. A result from there, for what From sends.
inline const Address kParentAddress = AddressOf(12, 99);
inline JobSlots MakeChildJob() {
  JobSlots job = MakeJob(3, 2);
  job.parent = {.job = 12, .epoch = 7, .slot_first = 40, .worker = 5, .address = kParentAddress};
  return job;
}
inline Packet FromParent(Lanes lanes = {5, -7}) {
  return {{.type = wire::PacketType::kResult,
           .job = 12,
           .epoch = 7,
           .worker = wire::kEveryWorker,
           .slot = 41,
           .sequence = 9},
          std::move(lanes)};
}

// Gives keys to the job and to its parent.
inline void GiveKeys(JobSlots& job) {
  job.keys.emplace(JobKeys{.contributions = {}, .results = wire::RandomKey(100)});
  for (size_t worker = 0; worker < job.addresses.size(); ++worker) {
    job.keys->contributions.push_back(wire::RandomKey(worker));
  }
  if (job.parent) job.parent->keys = {.contribution = wire::RandomKey(200), .result = wire::RandomKey(201)};
}

// The same packet with a tag.
inline std::vector<uint8_t> Sealed(std::vector<uint8_t> packet, const wire::PacketKey& key, uint64_t position) {
  packet[2] |= wire::kTagged;
  packet.resize(packet.size() + wire::kTagBytes);
  key.Seal(packet.data(), static_cast<uint32_t>((packet.size() - wire::kHeaderBytes - wire::kTagBytes) / 4), position);
  return packet;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_SWITCH_SLOT_PACKETS_H_
