#include "switch/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../tests/xla_ffi/switch/slot_packets.h"

namespace passing {
namespace {

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

TEST(SlotPool, onPacket_table) { CheckCases(kCases, MakeJob(3, 2, 0)); }

TEST(SlotPool, onPacket_tableWithTags) {
  JobSlots job = MakeJob(3, 2, 0);
  GiveKeys(job);
  CheckCases(kCases, job);
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
  EXPECT_TRUE(pool.VersionOf(1, 0).empty);
  pool.OnPacket(Bytes(From(2)), AddressOf(3, 2));
  pool.OnPacket(Bytes(From(0)), AddressOf(3, 0));
  EXPECT_EQ(pool.VersionOf(1, 0).bitmap, 0b101u);
  EXPECT_EQ(pool.VersionOf(1, 0).sequence, 9u);
  EXPECT_FALSE(pool.VersionOf(1, 0).complete);
  pool.OnPacket(Bytes(From(1)), AddressOf(3, 1));
  EXPECT_TRUE(pool.VersionOf(1, 0).complete);
  EXPECT_TRUE(pool.VersionOf(1, 1).empty);
  EXPECT_TRUE(pool.VersionOf(4, 0).empty);
  EXPECT_TRUE(pool.VersionOf(1, 2).empty);
}

TEST(SlotPool, addJob_newEpochStartsEmpty) {
  SlotPool pool(4);
  pool.AddJob(MakeJob(3, 2));
  pool.OnPacket(Bytes(From(0, {5})), AddressOf(3, 0));
  pool.AddJob(MakeJob(3, 2, 0, 4, 2));
  EXPECT_TRUE(pool.VersionOf(1, 0).empty);
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
  EXPECT_TRUE(pool.VersionOf(1, 0).empty);
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

}  // namespace
}  // namespace passing
