// Packets to a slot pool, and tables of what it has to do with them.
#ifndef TESTS_XLA_FFI_SWITCH_SLOT_PACKETS_H_
#define TESTS_XLA_FFI_SWITCH_SLOT_PACKETS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
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
  std::vector<uint8_t> bytes(wire::kHeaderBytes + 4 * packet.lanes.size());
  wire::Encode(header, bytes.data());
  for (size_t i = 0; i < packet.lanes.size(); ++i) {
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
inline Packet Flagged(uint8_t flags, Packet packet) {
  packet.header.flags = flags;
  return packet;
}
inline Packet Max(Packet packet) {
  packet.header.lane_format = LaneFormat::kMaxInt32;
  return packet;
}

// Job 3 at its parent: job 12, epoch 7, slots from 40, worker 5. A result from there, for what From sends.
inline const Address kParentAddress = AddressOf(12, 99);
inline const ParentJob kParent{.job = 12, .epoch = 7, .slot_first = 40, .worker = 5, .address = kParentAddress};
inline Packet FromParent(Lanes lanes = {5, -7}) {
  return {{.type = wire::PacketType::kResult,
           .job = 12,
           .epoch = 7,
           .worker = wire::kEveryWorker,
           .slot = 41,
           .sequence = 9},
          std::move(lanes)};
}

struct Step {
  Packet in;
  Verdict verdict;
  std::optional<Lanes> out = std::nullopt;  // lanes of what is sent
  uint8_t out_flags = 0;
  std::optional<Address> source = std::nullopt;  // else the worker's own
};

struct Case {
  const char* description;
  std::vector<Step> steps;
};

inline constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
inline constexpr int32_t kMax = std::numeric_limits<int32_t>::max();

// The packet that must be sent: its header is the incoming one's, with the numbers of the level that it goes to.
inline std::vector<uint8_t> ExpectedPacket(const Step& step) {
  if (!step.out.has_value()) return {};
  wire::Header header = step.in.header;
  header.flags = step.out_flags;
  if (step.verdict == Verdict::kForwarded || step.verdict == Verdict::kForwardedAgain) {
    header.job = 12, header.epoch = 7, header.worker = 5, header.slot = static_cast<uint16_t>(header.slot + 40);
    return Bytes({header, *step.out});
  }
  if (step.verdict == Verdict::kAnswered) {
    header.job = 3, header.epoch = 1, header.slot = static_cast<uint16_t>(header.slot - 40);
  }
  return Result(header, *step.out);
}

inline SendTo ExpectedSendTo(const Step& step) {
  if (!step.out.has_value()) return SendTo::kNobody;
  if (step.verdict == Verdict::kForwarded || step.verdict == Verdict::kForwardedAgain) return SendTo::kParent;
  return step.verdict == Verdict::kResend ? SendTo::kWorker : SendTo::kEveryWorker;
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

// Plays the cases. Packets from and to a job with keys have tags.
inline void CheckCases(const std::vector<Case>& cases, const JobSlots& job) {
  for (const Case& test : cases) {
    SlotPool pool(8);
    pool.AddJob(job);
    pool.AddJob(MakeJob(4, 2, 4));
    uint64_t completed = 0;
    for (size_t i = 0; i < test.steps.size(); ++i) {
      const Step& step = test.steps[i];
      const wire::Header& in = step.in.header;
      const bool from_parent = in.worker == wire::kEveryWorker;
      const Address own = from_parent ? kParentAddress : AddressOf(in.job, in.worker);
      std::vector<uint8_t> packet = Bytes(step.in), expected = ExpectedPacket(step);
      if (job.keys && in.job != 4) {
        const bool up = ExpectedSendTo(step) == SendTo::kParent;
        const uint64_t position = wire::PositionNear(completed, in.sequence);
        const bool is_ours = in.worker < job.addresses.size();  // else no tag is looked at
        const wire::PacketKey& key = from_parent ? (job.parent ? job.parent->keys->result : job.keys->results)
                                                 : job.keys->contributions[is_ours ? in.worker : 0];
        packet = Sealed(packet, key, position);
        if (!expected.empty()) {
          expected = Sealed(expected, up ? job.parent->keys->contribution : job.keys->results, position);
        }
        if (step.verdict == Verdict::kComplete || step.verdict == Verdict::kForwarded) completed = position;
      }
      const Action action = pool.OnPacket(packet, step.source.value_or(own));
      EXPECT_STREQ(Name(action.verdict), Name(step.verdict)) << test.description << ", step " << i;
      EXPECT_EQ(action.to, ExpectedSendTo(step)) << test.description << ", step " << i;
      EXPECT_EQ(std::vector<uint8_t>(action.packet.begin(), action.packet.end()), expected)
          << test.description << ", step " << i;
      if (action.to == SendTo::kNobody) continue;
      EXPECT_EQ(action.job, from_parent ? job.job : in.job) << test.description << ", step " << i;
      EXPECT_EQ(action.worker, in.worker) << test.description << ", step " << i;
    }
  }
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_SWITCH_SLOT_PACKETS_H_
