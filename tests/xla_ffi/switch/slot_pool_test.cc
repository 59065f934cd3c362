#include "switch/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

namespace passing {
namespace {

using Lanes = std::vector<int32_t>;
using wire::LaneFormat;

Address AddressOf(uint16_t job, uint16_t worker) {
  Address address;
  address.size = 16;
  address.bytes[0] = static_cast<uint8_t>(job);
  address.bytes[1] = static_cast<uint8_t>(worker);
  return address;
}

JobSlots MakeJob(uint16_t job, uint32_t workers, uint32_t slot_first = 0, uint32_t slot_count = 4, uint16_t epoch = 1) {
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

std::vector<uint8_t> Bytes(const Packet& packet) {
  wire::Header header = packet.header;
  header.element_count = static_cast<uint16_t>(packet.lanes.size());
  std::vector<uint8_t> bytes(wire::kHeaderBytes + 4 * packet.lanes.size());
  wire::Encode(header, bytes.data());
  for (size_t i = 0; i < packet.lanes.size(); ++i) {
    wire::StoreLane(&bytes[wire::kHeaderBytes + 4 * i], static_cast<uint32_t>(packet.lanes[i]));
  }
  return bytes;
}

std::vector<uint8_t> Result(wire::Header header, const Lanes& lanes) {
  header.type = wire::PacketType::kResult;
  header.worker = wire::kEveryWorker;
  return Bytes({header, lanes});
}

// A contribution of job 3, epoch 1, in slot 1, version 0, sequence 9, unless a test says otherwise.
Packet From(uint16_t worker, Lanes lanes = {5, -7}) {
  return {{.job = 3, .epoch = 1, .worker = worker, .slot = 1, .sequence = 9}, std::move(lanes)};
}
Packet With(Packet packet, auto change) {
  change(packet.header);
  return packet;
}
Packet AtSequence(uint32_t sequence, Packet packet) {
  packet.header.sequence = sequence;
  return packet;
}
Packet Flagged(uint8_t flags, Packet packet) {
  packet.header.flags = flags;
  return packet;
}
Packet Max(Packet packet) {
  packet.header.lane_format = LaneFormat::kMaxInt32;
  return packet;
}

// Job 3 at its parent: job 12, epoch 7, slots from 40, worker 5. A result from there, for what From sends.
const Address kParentAddress = AddressOf(12, 99);
const ParentJob kParent{.job = 12, .epoch = 7, .slot_first = 40, .worker = 5, .address = kParentAddress};
Packet FromParent(Lanes lanes = {5, -7}) {
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

constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax = std::numeric_limits<int32_t>::max();

// Job 3 has two workers and slots 0 to 3 of 8; job 4 has slots 4 to 7.
const std::vector<Case> kCases = {
    {"two workers, in order",
     {{From(0, {5, -7}), Verdict::kAdded}, {From(1, {1, 2}), Verdict::kComplete, Lanes{6, -5}}}},
    {"two workers, the other order",
     {{From(1, {1, 2}), Verdict::kAdded}, {From(0, {5, -7}), Verdict::kComplete, Lanes{6, -5}}}},
    {"sums wrap",
     {{From(0, {kMax, kMin}), Verdict::kAdded}, {From(1, {1, -1}), Verdict::kComplete, Lanes{kMin, kMax}}}},
    {"maximum is signed",
     {{Max(From(0, {-3, kMin, 4})), Verdict::kAdded},
      {Max(From(1, {-4, -1, 5})), Verdict::kComplete, Lanes{-3, -1, 5}}}},
    {"duplicate before completion is not added again",
     {{From(0, {5, 5}), Verdict::kAdded},
      {From(0, {5, 5}), Verdict::kDuplicate},
      {From(1, {1, 1}), Verdict::kComplete, Lanes{6, 6}}}},
    {"duplicate after completion gets the same result, each time",
     {{From(0, {5, 5}), Verdict::kAdded},
      {From(1, {1, 1}), Verdict::kComplete, Lanes{6, 6}},
      {From(0, {5, 5}), Verdict::kResend, Lanes{6, 6}},
      {From(1, {99, 99}), Verdict::kResend, Lanes{6, 6}},
      {From(0, {5, 5}), Verdict::kResend, Lanes{6, 6}}}},
    {"past sequence is dropped before completion",
     {{From(0), Verdict::kAdded},
      {AtSequence(8, From(1)), Verdict::kStale},
      {AtSequence(1, From(0)), Verdict::kStale}}},
    {"past sequence is dropped after completion",
     {{From(0, {1}), Verdict::kAdded},
      {From(1, {1}), Verdict::kComplete, Lanes{2}},
      {AtSequence(8, From(1, {1})), Verdict::kStale},
      {From(1, {1}), Verdict::kResend, Lanes{2}}}},
    {"future sequence resets an incomplete slot",
     {{From(0, {5}), Verdict::kAdded},
      {AtSequence(17, From(1, {1})), Verdict::kAdded},
      {AtSequence(17, From(0, {2})), Verdict::kComplete, Lanes{3}}}},
    {"future sequence resets a complete slot, the past one is gone",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kComplete, Lanes{6}},
      {AtSequence(17, From(1, {8})), Verdict::kAdded},
      {From(1, {1}), Verdict::kStale},
      {AtSequence(17, From(0, {2})), Verdict::kComplete, Lanes{10}}}},
    {"sequence wraps: 2 is after 0xFFFFFFFE",
     {{AtSequence(0xFFFFFFFE, From(0, {5})), Verdict::kAdded},
      {AtSequence(2, From(1, {1})), Verdict::kAdded},
      {AtSequence(0xFFFFFFFE, From(1, {1})), Verdict::kStale},
      {AtSequence(2, From(0, {1})), Verdict::kComplete, Lanes{2}}}},
    {"first sequence of an empty slot may be any",
     {{AtSequence(0x80000001, From(0, {5})), Verdict::kAdded},
      {AtSequence(0x80000001, From(1, {1})), Verdict::kComplete, Lanes{6}}}},
    {"versions don't touch each other",
     {{From(0, {5}), Verdict::kAdded},
      {With(From(1, {1}), [](auto& h) { h.version = 1; }), Verdict::kAdded},
      {With(From(0, {2}), [](auto& h) { h.version = 1; }), Verdict::kComplete, Lanes{3}},
      {From(1, {1}), Verdict::kComplete, Lanes{6}}}},
    {"slots don't touch each other",
     {{From(0, {5}), Verdict::kAdded},
      {With(From(1, {1}), [](auto& h) { h.slot = 2; }), Verdict::kAdded},
      {From(1, {1}), Verdict::kComplete, Lanes{6}}}},
    {"flags are ored over the workers",
     {{Flagged(wire::kFlagNaN, From(0, {5})), Verdict::kAdded},
      {Flagged(wire::kFlagPosInf, From(1, {1})), Verdict::kComplete, Lanes{6}, wire::kFlagNaN | wire::kFlagPosInf},
      {From(0, {5}), Verdict::kResend, Lanes{6}, wire::kFlagNaN | wire::kFlagPosInf}}},
    {"flags end with their sequence",
     {{Flagged(wire::kFlagNegInf, From(0, {5})), Verdict::kAdded},
      {AtSequence(17, From(0, {5})), Verdict::kAdded},
      {AtSequence(17, From(1, {1})), Verdict::kComplete, Lanes{6}}}},
    {"flags of a duplicate are ignored",
     {{From(0, {5}), Verdict::kAdded},
      {Flagged(wire::kFlagNaN, From(0, {5})), Verdict::kDuplicate},
      {From(1, {1}), Verdict::kComplete, Lanes{6}}}},
    {"element count unlike the first worker's",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1, 2}), Verdict::kMismatch},
      {From(1, {1}), Verdict::kComplete, Lanes{6}}}},
    {"lane format unlike the first worker's",
     {{From(0, {5}), Verdict::kAdded},
      {Max(From(1, {1})), Verdict::kMismatch},
      {From(1, {1}), Verdict::kComplete, Lanes{6}},
      {Max(From(1, {1})), Verdict::kMismatch}}},
    {"element count may change with the sequence",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kComplete, Lanes{6}},
      {AtSequence(17, From(0, {1, 2, 3})), Verdict::kAdded},
      {AtSequence(17, From(1, {1, 1, 1})), Verdict::kComplete, Lanes{2, 3, 4}}}},
    {"foreign job", {{With(From(0), [](auto& h) { h.job = 5; }), Verdict::kForeignJob}}},
    {"foreign job, far outside the table", {{With(From(0), [](auto& h) { h.job = 65535; }), Verdict::kForeignJob}}},
    {"epoch before", {{With(From(0), [](auto& h) { h.epoch = 0; }), Verdict::kForeignEpoch}}},
    {"epoch after", {{With(From(0), [](auto& h) { h.epoch = 2; }), Verdict::kForeignEpoch}}},
    {"worker outside the world", {{From(2), Verdict::kForeignWorker}}},
    {"worker outside the bitmap", {{From(64), Verdict::kForeignWorker}}},
    {"the worker of a result for all", {{From(wire::kEveryWorker), Verdict::kForeignWorker}}},
    {"another worker's address", {{From(0), Verdict::kForeignSource, std::nullopt, 0, AddressOf(3, 1)}}},
    {"another job's address", {{From(0), Verdict::kForeignSource, std::nullopt, 0, AddressOf(4, 0)}}},
    {"slot of another job", {{With(From(0), [](auto& h) { h.slot = 4; }), Verdict::kForeignSlot}}},
    {"slot outside the pool", {{With(From(0), [](auto& h) { h.slot = 65535; }), Verdict::kForeignSlot}}},
    {"slot before the partition",
     {{With(From(0), [](auto& h) { h.job = 4, h.slot = 3; }), Verdict::kForeignSlot, std::nullopt, 0,
       AddressOf(4, 0)}}},
    {"a result sent to the switch",
     {{With(From(0), [](auto& h) { h.type = wire::PacketType::kResult; }), Verdict::kNotContribution}}},
    {"epoch is looked at before worker, and worker before slot",
     {{With(From(9), [](auto& h) { h.epoch = 2, h.slot = 9; }), Verdict::kForeignEpoch},
      {With(From(9), [](auto& h) { h.slot = 9; }), Verdict::kForeignWorker}}},
};

// The same two jobs, but job 3 has a parent.
const std::vector<Case> kChildCases = {
    {"the last worker's contribution sends the sum up, the parent's result goes down",
     {{From(0, {5, -7}), Verdict::kAdded},
      {From(1, {1, 2}), Verdict::kForwarded, Lanes{6, -5}},
      {FromParent({60, -50}), Verdict::kAnswered, Lanes{60, -50}}}},
    {"past contribution, before the sum went up, after, and after the answer",
     {{From(0), Verdict::kAdded},
      {AtSequence(8, From(1)), Verdict::kStale},
      {From(1), Verdict::kForwarded, Lanes{10, -14}},
      {AtSequence(8, From(1)), Verdict::kStale},
      {FromParent(), Verdict::kAnswered, Lanes{5, -7}},
      {AtSequence(8, From(1)), Verdict::kStale}}},
    {"duplicate contribution, before the sum went up, after, and after the answer",
     {{From(0, {5}), Verdict::kAdded},
      {From(0, {5}), Verdict::kDuplicate},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}},
      {From(0, {5}), Verdict::kForwardedAgain, Lanes{6}},
      {From(1, {99}), Verdict::kForwardedAgain, Lanes{6}},
      {FromParent({60}), Verdict::kAnswered, Lanes{60}},
      {From(0, {5}), Verdict::kResend, Lanes{60}},
      {From(1, {1}), Verdict::kResend, Lanes{60}}}},
    {"future contribution resets the slot, before the sum went up",
     {{From(0, {5}), Verdict::kAdded},
      {AtSequence(17, From(1, {1})), Verdict::kAdded},
      {AtSequence(17, From(0, {2})), Verdict::kForwarded, Lanes{3}}}},
    {"future contribution resets the slot, after the sum went up",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}},
      {AtSequence(17, From(1, {1})), Verdict::kAdded},
      {From(0, {5}), Verdict::kStale},
      {AtSequence(17, From(0, {2})), Verdict::kForwarded, Lanes{3}}}},
    {"future contribution resets the slot, after the answer",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}},
      {FromParent({60}), Verdict::kAnswered, Lanes{60}},
      {AtSequence(17, From(1, {1})), Verdict::kAdded},
      {AtSequence(17, From(0, {2})), Verdict::kForwarded, Lanes{3}},
      {AtSequence(17, FromParent({30})), Verdict::kAnswered, Lanes{30}}}},
    {"past result doesn't touch a slot that sums the next chunk",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}},
      {AtSequence(17, From(1, {1})), Verdict::kAdded},
      {FromParent({60}), Verdict::kStale},
      {AtSequence(17, From(0, {2})), Verdict::kForwarded, Lanes{3}},
      {FromParent({60}), Verdict::kStale},
      {AtSequence(17, From(0, {2})), Verdict::kForwardedAgain, Lanes{3}},
      {AtSequence(17, FromParent({30})), Verdict::kAnswered, Lanes{30}},
      {FromParent({60}), Verdict::kStale}}},
    {"duplicate result",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}},
      {FromParent({60}), Verdict::kAnswered, Lanes{60}},
      {FromParent({60}), Verdict::kDuplicate},
      {FromParent({61}), Verdict::kDuplicate},
      {From(1, {1}), Verdict::kResend, Lanes{60}}}},
    {"future result can't be",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}},
      {AtSequence(17, FromParent({60})), Verdict::kStale},
      {FromParent({60}), Verdict::kAnswered, Lanes{60}}}},
    {"result for an empty slot can't be", {{FromParent(), Verdict::kStale}}},
    {"result before the sum went up can't be",
     {{From(0, {5}), Verdict::kAdded},
      {FromParent({60}), Verdict::kStale},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}}}},
    {"result with other lanes than went up can't be",
     {{From(0, {5}), Verdict::kAdded},
      {From(1, {1}), Verdict::kForwarded, Lanes{6}},
      {FromParent({60, 60}), Verdict::kStale},
      {Max(FromParent({60})), Verdict::kStale},
      {FromParent({60}), Verdict::kAnswered, Lanes{60}}}},
    {"sequence wraps: 2 is after 0xFFFFFFFE",
     {{AtSequence(0xFFFFFFFE, From(0, {5})), Verdict::kAdded},
      {AtSequence(0xFFFFFFFE, From(1, {1})), Verdict::kForwarded, Lanes{6}},
      {AtSequence(2, From(1, {1})), Verdict::kAdded},
      {AtSequence(0xFFFFFFFE, FromParent({60})), Verdict::kStale},
      {AtSequence(2, From(0, {1})), Verdict::kForwarded, Lanes{2}},
      {AtSequence(2, FromParent({20})), Verdict::kAnswered, Lanes{20}}}},
    {"flags go up ored over the workers, and come down ored over all",
     {{Flagged(wire::kFlagNaN, From(0, {5})), Verdict::kAdded},
      {Flagged(wire::kFlagPosInf, From(1, {1})), Verdict::kForwarded, Lanes{6}, wire::kFlagNaN | wire::kFlagPosInf},
      {Flagged(wire::kAllFlags, FromParent({60})), Verdict::kAnswered, Lanes{60}, wire::kAllFlags},
      {From(0, {5}), Verdict::kResend, Lanes{60}, wire::kAllFlags}}},
    {"maximum, at both levels",
     {{Max(From(0, {-3, kMin})), Verdict::kAdded},
      {Max(From(1, {-4, -1})), Verdict::kForwarded, Lanes{-3, -1}},
      {Max(FromParent({7, -1})), Verdict::kAnswered, Lanes{7, -1}}}},
    {"the other version, slot after slot",
     {{With(From(0, {5}), [](auto& h) { h.slot = 3, h.version = 1; }), Verdict::kAdded},
      {With(From(1, {1}), [](auto& h) { h.slot = 3, h.version = 1; }), Verdict::kForwarded, Lanes{6}},
      {With(FromParent({60}), [](auto& h) { h.slot = 43; }), Verdict::kStale},
      {With(FromParent({60}), [](auto& h) { h.version = 1; }), Verdict::kStale},
      {With(FromParent({60}), [](auto& h) { h.slot = 43, h.version = 1; }), Verdict::kAnswered, Lanes{60}}}},
    {"result of a job that is nobody's parent",
     {{With(FromParent(), [](auto& h) { h.job = 11; }), Verdict::kForeignJob},
      {With(FromParent(), [](auto& h) { h.job = 65535; }), Verdict::kForeignJob}}},
    {"result with the job's own number, not its parent's",
     {{With(FromParent(), [](auto& h) { h.job = 3, h.epoch = 1; }), Verdict::kForeignWorker},
      {With(From(0), [](auto& h) { h.type = wire::PacketType::kResult; }), Verdict::kNotContribution}}},
    {"contribution with the parent's number", {{With(From(0), [](auto& h) { h.job = 12; }), Verdict::kForeignJob}}},
    {"result of the parent's other epochs",
     {{With(FromParent(), [](auto& h) { h.epoch = 6; }), Verdict::kForeignEpoch},
      {With(FromParent(), [](auto& h) { h.epoch = 8; }), Verdict::kForeignEpoch}}},
    {"result for one worker", {{With(FromParent(), [](auto& h) { h.worker = 5; }), Verdict::kForeignWorker}}},
    {"result from a worker's address, from another switch",
     {{FromParent(), Verdict::kForeignSource, std::nullopt, 0, AddressOf(3, 0)},
      {FromParent(), Verdict::kForeignSource, std::nullopt, 0, AddressOf(12, 98)}}},
    {"result for slots that the job doesn't have at its parent",
     {{With(FromParent(), [](auto& h) { h.slot = 39; }), Verdict::kForeignSlot},
      {With(FromParent(), [](auto& h) { h.slot = 44; }), Verdict::kForeignSlot},
      {With(FromParent(), [](auto& h) { h.slot = 1; }), Verdict::kForeignSlot}}},
    {"the other job has no parent",
     {{With(From(0, {5}), [](auto& h) { h.job = 4, h.slot = 5; }), Verdict::kAdded},
      {With(From(1, {1}), [](auto& h) { h.job = 4, h.slot = 5; }), Verdict::kComplete, Lanes{6}}}},
};

// What is to be sent, and to whom: the header from the packet's, its numbers from the level that it goes to.
std::vector<uint8_t> ExpectedPacket(const Step& step) {
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

SendTo ExpectedSendTo(const Step& step) {
  if (!step.out.has_value()) return SendTo::kNobody;
  if (step.verdict == Verdict::kForwarded || step.verdict == Verdict::kForwardedAgain) return SendTo::kParent;
  return step.verdict == Verdict::kResend ? SendTo::kWorker : SendTo::kEveryWorker;
}

void CheckCases(const std::vector<Case>& cases, const JobSlots& job) {
  for (const Case& test : cases) {
    SlotPool pool(8);
    pool.AddJob(job);
    pool.AddJob(MakeJob(4, 2, 4));
    for (size_t i = 0; i < test.steps.size(); ++i) {
      const Step& step = test.steps[i];
      const wire::Header& in = step.in.header;
      const bool from_parent = in.worker == wire::kEveryWorker;
      const Address own = from_parent ? kParentAddress : AddressOf(in.job, in.worker);
      const Action action = pool.OnPacket(Bytes(step.in), step.source.value_or(own));
      EXPECT_STREQ(Name(action.verdict), Name(step.verdict)) << test.description << ", step " << i;
      EXPECT_EQ(action.to, ExpectedSendTo(step)) << test.description << ", step " << i;
      EXPECT_EQ(std::vector<uint8_t>(action.packet.begin(), action.packet.end()), ExpectedPacket(step))
          << test.description << ", step " << i;
      if (action.to == SendTo::kNobody) continue;
      EXPECT_EQ(action.job, from_parent ? job.job : in.job) << test.description << ", step " << i;
      EXPECT_EQ(action.worker, in.worker) << test.description << ", step " << i;
    }
  }
}

JobSlots MakeChildJob() {
  JobSlots job = MakeJob(3, 2, 0);
  job.parent = kParent;
  return job;
}

TEST(SlotPool, onPacket_table) { CheckCases(kCases, MakeJob(3, 2, 0)); }

TEST(SlotPool, onPacket_childTable) { CheckCases(kChildCases, MakeChildJob()); }

TEST(SlotPool, onPacket_childOfOneWorkerPassesOn) {
  SlotPool pool(8);
  JobSlots job = MakeJob(3, 1, 4);
  job.parent = kParent;
  pool.AddJob(job);
  Packet packet = With(From(0, {5}), [](auto& header) { header.slot = 6; });
  const Action action = pool.OnPacket(Bytes(packet), AddressOf(3, 0));
  EXPECT_EQ(action.verdict, Verdict::kForwarded);
  packet.header.job = 12, packet.header.epoch = 7, packet.header.worker = 5, packet.header.slot = 42;
  EXPECT_TRUE(std::ranges::equal(action.packet, Bytes(packet)));
}

TEST(SlotPool, addJob_parents) {
  SlotPool pool(8);
  const auto with = [](auto&& change) {
    JobSlots job = MakeChildJob();
    change(job);
    return job;
  };
  EXPECT_THROW(pool.AddJob(with([](JobSlots& job) { job.parent->worker = 64; })), std::invalid_argument);
  EXPECT_THROW(pool.AddJob(with([](JobSlots& job) { job.parent->slot_first = 65533; })), std::invalid_argument);
  pool.AddJob(with([](JobSlots& job) { job.parent->slot_first = 65532; }));
  EXPECT_THROW(pool.AddJob(with([](JobSlots& job) { job.job = 5, job.slot_first = 4; })), std::invalid_argument);

  // Another epoch, of other numbers at the parent: the old ones are nobody's.
  pool.AddJob(with([](JobSlots& job) { job.parent->job = 13; }));
  EXPECT_EQ(pool.OnPacket(Bytes(FromParent()), kParentAddress).verdict, Verdict::kForeignJob);
  const Packet thirteen = With(FromParent(), [](auto& header) { header.job = 13; });
  EXPECT_EQ(pool.OnPacket(Bytes(thirteen), kParentAddress).verdict, Verdict::kStale);
  pool.RemoveJob(3);
  EXPECT_EQ(pool.OnPacket(Bytes(thirteen), kParentAddress).verdict, Verdict::kForeignJob);
}

TEST(SlotPool, onPacket_malformedIsCounted) {
  SlotPool pool(8);
  pool.AddJob(MakeJob(3, 2));
  std::vector<uint8_t> packet = Bytes(From(0));
  packet.pop_back();
  EXPECT_EQ(pool.OnPacket(packet, AddressOf(3, 0)).verdict, Verdict::kMalformed);
  EXPECT_EQ(pool.OnPacket({}, AddressOf(3, 0)).verdict, Verdict::kMalformed);
  EXPECT_EQ(pool.Count(Verdict::kMalformed), 2u);
  EXPECT_EQ(pool.Count(Verdict::kAdded), 0u);
}

TEST(SlotPool, onPacket_everyWorldSizeAndLaneCount) {
  for (const uint32_t workers : {1u, 2u, 3u, 32u, 33u, 63u, 64u}) {
    for (const size_t lane_count : {1u, 3u, 7u, 8u, 64u, 255u, 359u, 360u}) {
      SlotPool pool(1);
      pool.AddJob(MakeJob(3, workers, 0, 1));
      Lanes sum(lane_count, 0);
      for (uint32_t worker = 0; worker < workers; ++worker) {
        Lanes lanes(lane_count);
        for (size_t i = 0; i < lane_count; ++i) {
          lanes[i] = static_cast<int32_t>(i * 1'000'003 + worker * 7 + 1);
          sum[i] = static_cast<int32_t>(static_cast<uint32_t>(sum[i]) + static_cast<uint32_t>(lanes[i]));
        }
        Packet packet = From(static_cast<uint16_t>(worker), lanes);
        packet.header.slot = 0;
        const Action action = pool.OnPacket(Bytes(packet), AddressOf(3, static_cast<uint16_t>(worker)));
        if (worker + 1 < workers) {
          ASSERT_EQ(action.verdict, Verdict::kAdded);
          continue;
        }
        ASSERT_EQ(action.verdict, Verdict::kComplete);
        const std::vector<uint8_t> expected = Result(packet.header, sum);
        ASSERT_TRUE(std::ranges::equal(action.packet, expected)) << workers << " workers, " << lane_count << " lanes";
      }
    }
  }
}

TEST(SlotPool, onPacket_unalignedPacket) {
  SlotPool pool(4);
  pool.AddJob(MakeJob(3, 1));
  const Packet packet = From(0, Lanes(360, 0x01020304));
  std::vector<uint8_t> shifted(1);
  const std::vector<uint8_t> bytes = Bytes(packet);
  shifted.insert(shifted.end(), bytes.begin(), bytes.end());
  const Action action = pool.OnPacket(std::span(shifted).subspan(1), AddressOf(3, 0));
  EXPECT_TRUE(std::ranges::equal(action.packet, Result(packet.header, packet.lanes)));
}

TEST(SlotPool, state_tellsWhoIsMissing) {
  SlotPool pool(4);
  pool.AddJob(MakeJob(3, 3));
  EXPECT_TRUE(pool.State(1, 0).empty);
  pool.OnPacket(Bytes(From(2)), AddressOf(3, 2));
  pool.OnPacket(Bytes(From(0)), AddressOf(3, 0));
  EXPECT_EQ(pool.State(1, 0).bitmap, 0b101u);
  EXPECT_EQ(pool.State(1, 0).sequence, 9u);
  EXPECT_FALSE(pool.State(1, 0).complete);
  pool.OnPacket(Bytes(From(1)), AddressOf(3, 1));
  EXPECT_TRUE(pool.State(1, 0).complete);
  EXPECT_TRUE(pool.State(1, 1).empty);
  EXPECT_TRUE(pool.State(4, 0).empty);
  EXPECT_TRUE(pool.State(1, 2).empty);
}

TEST(SlotPool, state_aFullSlotWaitsForTheParent) {
  SlotPool pool(8);
  pool.AddJob(MakeChildJob());
  pool.OnPacket(Bytes(From(0)), AddressOf(3, 0));
  pool.OnPacket(Bytes(From(1)), AddressOf(3, 1));
  EXPECT_EQ(pool.State(1, 0).bitmap, 0b11u);
  EXPECT_FALSE(pool.State(1, 0).complete);
  pool.OnPacket(Bytes(FromParent()), kParentAddress);
  EXPECT_TRUE(pool.State(1, 0).complete);
}

TEST(SlotPool, addJob_newEpochStartsEmpty) {
  SlotPool pool(4);
  pool.AddJob(MakeJob(3, 2));
  pool.OnPacket(Bytes(From(0, {5})), AddressOf(3, 0));
  pool.AddJob(MakeJob(3, 2, 0, 4, 2));
  EXPECT_TRUE(pool.State(1, 0).empty);
  EXPECT_EQ(pool.OnPacket(Bytes(From(1, {5})), AddressOf(3, 1)).verdict, Verdict::kForeignEpoch);
  const auto next = [](auto& header) { header.epoch = 2, header.sequence = 0; };
  EXPECT_EQ(pool.OnPacket(Bytes(With(From(1, {1}), next)), AddressOf(3, 1)).verdict, Verdict::kAdded);
  EXPECT_EQ(pool.OnPacket(Bytes(With(From(0, {1}), next)), AddressOf(3, 0)).verdict, Verdict::kComplete);
}

TEST(SlotPool, removeJob_freesItsSlots) {
  SlotPool pool(4);
  pool.AddJob(MakeJob(3, 2));
  pool.OnPacket(Bytes(From(0, {5})), AddressOf(3, 0));
  EXPECT_THROW(pool.AddJob(MakeJob(4, 2, 2, 2)), std::invalid_argument);
  pool.RemoveJob(3);
  pool.RemoveJob(3);
  pool.RemoveJob(9999);
  EXPECT_EQ(pool.OnPacket(Bytes(From(1, {5})), AddressOf(3, 1)).verdict, Verdict::kForeignJob);
  pool.AddJob(MakeJob(4, 2, 0, 4));
  EXPECT_TRUE(pool.State(1, 0).empty);
}

TEST(SlotPool, addJob_refusesWhatCannotBe) {
  SlotPool pool(8);
  EXPECT_THROW(pool.AddJob(MakeJob(1, 0)), std::invalid_argument);
  EXPECT_THROW(pool.AddJob(MakeJob(1, 65)), std::invalid_argument);
  EXPECT_THROW(pool.AddJob(MakeJob(1, 2, 0, 3)), std::invalid_argument);
  EXPECT_THROW(pool.AddJob(MakeJob(1, 2, 0, 0)), std::invalid_argument);
  EXPECT_THROW(pool.AddJob(MakeJob(1, 2, 0, 16)), std::invalid_argument);
  EXPECT_THROW(pool.AddJob(MakeJob(1, 2, 5, 4)), std::invalid_argument);
  EXPECT_THROW(pool.AddJob(MakeJob(1, 2, 0xFFFFFFFF, 4)), std::invalid_argument);
  EXPECT_THROW(SlotPool(0), std::invalid_argument);
  EXPECT_THROW(SlotPool(65537), std::invalid_argument);
  pool.AddJob(MakeJob(1, 64, 4, 4));
}

TEST(SlotPool, name_isUnique) {
  std::set<std::string> names;
  for (int i = 0; i < kVerdictCount; ++i) names.insert(Name(static_cast<Verdict>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kVerdictCount));
  EXPECT_FALSE(names.contains("unknown"));
}

// The rules once more, in the plainest way: every contribution is kept, and the result computed from all.
class Model {
 public:
  explicit Model(size_t workers) : workers_(workers) {}

  Verdict OnPacket(const Packet& packet, std::vector<uint8_t>& out) {
    const wire::Header& in = packet.header;
    Held& held = held_[{in.slot, in.version}];
    if (held.workers.empty() || wire::SequenceBefore(held.sequence, in.sequence)) {
      held = {in.sequence, {}};
    } else if (in.sequence != held.sequence) {
      return Verdict::kStale;
    }
    if (!held.workers.empty()) {
      const Packet& first = held.workers.begin()->second;
      if (first.lanes.size() != packet.lanes.size() || first.header.lane_format != in.lane_format) {
        return Verdict::kMismatch;
      }
    }
    const bool again = !held.workers.emplace(in.worker, packet).second;
    if (held.workers.size() < workers_) return again ? Verdict::kDuplicate : Verdict::kAdded;
    wire::Header header = in;
    header.flags = 0;
    Lanes lanes(packet.lanes.size(), in.lane_format == LaneFormat::kSumInt32 ? 0 : kMin);
    for (const auto& [worker, from] : held.workers) {
      header.flags |= from.header.flags;
      for (size_t i = 0; i < lanes.size(); ++i) {
        lanes[i] = in.lane_format == LaneFormat::kMaxInt32
                       ? std::max(lanes[i], from.lanes[i])
                       : static_cast<int32_t>(static_cast<uint32_t>(lanes[i]) + static_cast<uint32_t>(from.lanes[i]));
      }
    }
    out = Result(header, lanes);
    return again ? Verdict::kResend : Verdict::kComplete;
  }

 private:
  struct Held {
    uint32_t sequence = 0;
    std::map<uint16_t, Packet> workers;
  };
  size_t workers_;
  std::map<std::pair<uint16_t, uint8_t>, Held> held_;
};

TEST(SlotPool, onPacket_agreesWithModel) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const uint32_t workers = 1 + random() % (seed % 3 == 0 ? 64 : 4);
    SlotPool pool(8);
    pool.AddJob(MakeJob(3, workers, 4, 4));
    Model model(workers);
    const uint32_t base = static_cast<uint32_t>(random());  // often close to the wrap
    for (int i = 0; i < 400; ++i) {
      const auto worker = static_cast<uint16_t>(random() % workers);
      Lanes lanes(1 + (random() % 8 == 0), 0);
      for (int32_t& lane : lanes) lane = static_cast<int32_t>(random());
      Packet packet = From(worker, lanes);
      packet.header.slot = static_cast<uint16_t>(4 + random() % 2);
      packet.header.version = random() % 2;
      packet.header.flags = random() % 4 ? 0 : random() % 8;
      if (seed % 2) packet.header.lane_format = LaneFormat::kMaxInt32;
      packet.header.sequence = base + static_cast<uint32_t>(i / 50) + static_cast<uint32_t>(random() % 8 == 0) -
                               static_cast<uint32_t>(random() % 8 == 0);
      std::vector<uint8_t> expected;
      const Verdict verdict = model.OnPacket(packet, expected);
      const Action action = pool.OnPacket(Bytes(packet), AddressOf(3, worker));
      ASSERT_STREQ(Name(action.verdict), Name(verdict)) << "seed " << seed << ", packet " << i;
      ASSERT_TRUE(std::ranges::equal(action.packet, expected)) << "seed " << seed << ", packet " << i;
    }
  }
}

// Whatever a packet claims, nothing outside the job's slots changes.
TEST(SlotPool, onPacket_randomHeadersStayInThePartition) {
  std::mt19937 random(11);
  SlotPool pool(16);
  pool.AddJob(MakeJob(3, 2, 8, 4));
  for (int i = 0; i < 100'000; ++i) {
    std::vector<uint8_t> packet(wire::kHeaderBytes + 4);
    Packet valid = From(static_cast<uint16_t>(random() % 2), {1});
    valid.header.slot = static_cast<uint16_t>(random() % 20);
    packet = Bytes(valid);
    packet[random() % packet.size()] = static_cast<uint8_t>(random());
    pool.OnPacket(packet, AddressOf(3, static_cast<uint16_t>(random() % 2)));
  }
  for (uint32_t slot = 0; slot < 16; ++slot) {
    if (slot >= 8 && slot < 12) continue;
    EXPECT_TRUE(pool.State(slot, 0).empty && pool.State(slot, 1).empty) << slot;
  }
  EXPECT_GT(pool.Count(Verdict::kForeignSource), 0u);
  EXPECT_GT(pool.Count(Verdict::kForeignSlot), 0u);
}

}  // namespace
}  // namespace passing
