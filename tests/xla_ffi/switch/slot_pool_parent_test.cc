// Jobs whose sums go up to another switch, and whose results come from there.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "../tests/xla_ffi/switch/slot_packets.h"
#include "switch/slot_pool.h"

namespace passing {
namespace {

JobSlots MakeChildJob() {
  JobSlots job = MakeJob(3, 2, 0);
  job.parent = kParent;
  return job;
}

// Job 3 has two workers, slots 0 to 3 of 8 and a parent; job 4 has slots 4 to 7.
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

TEST(SlotPool, onPacket_childTable) { CheckCases(kChildCases, MakeChildJob()); }

TEST(SlotPool, onPacket_childTableWithTags) {
  JobSlots job = MakeChildJob();
  GiveKeys(job);
  CheckCases(kChildCases, job);
}

TEST(SlotPool, forgedResultsOfTheParentChangeNothing) {
  JobSlots job = MakeChildJob();
  GiveKeys(job);
  SlotPool pool(8);
  pool.AddJob(job);
  for (const uint16_t worker : {0, 1}) {
    pool.OnPacket(Sealed(Bytes(From(worker)), job.keys->contributions[worker], 9), AddressOf(3, worker));
  }
  const std::vector<uint8_t> result = Bytes(FromParent({60, -50}));
  for (const wire::PacketKey& key : {job.parent->keys->contribution, job.keys->results, wire::RandomKey(77)}) {
    EXPECT_EQ(pool.OnPacket(Sealed(result, key, 9), kParentAddress).verdict, Verdict::kForged);
  }
  EXPECT_EQ(pool.OnPacket(result, kParentAddress).verdict, Verdict::kForged);
  EXPECT_FALSE(pool.VersionOf(1, 0).complete);
  EXPECT_EQ(pool.OnPacket(Sealed(result, job.parent->keys->result, 9), kParentAddress).verdict, Verdict::kAnswered);
}

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

TEST(SlotPool, state_aFullSlotWaitsForTheParent) {
  SlotPool pool(8);
  pool.AddJob(MakeChildJob());
  pool.OnPacket(Bytes(From(0)), AddressOf(3, 0));
  pool.OnPacket(Bytes(From(1)), AddressOf(3, 1));
  EXPECT_EQ(pool.VersionOf(1, 0).bitmap, 0b11u);
  EXPECT_FALSE(pool.VersionOf(1, 0).complete);
  pool.OnPacket(Bytes(FromParent()), kParentAddress);
  EXPECT_TRUE(pool.VersionOf(1, 0).complete);
}

}  // namespace
}  // namespace passing
