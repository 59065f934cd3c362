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

// A job with keys whose slot 1 holds a contribution of worker 0, at sequence 9.
class Tagged : public testing::Test {
 protected:
  Tagged() {
    GiveKeys(job_);
    pool_.AddJob(job_);
    EXPECT_EQ(Give(Genuine(From(0))), Verdict::kAdded);
  }

  std::vector<uint8_t> Genuine(const Packet& packet) const {
    return Sealed(Bytes(packet), job_.keys->contributions[packet.header.worker], packet.header.sequence);
  }
  Verdict Give(const std::vector<uint8_t>& packet, uint16_t worker = 0) {
    return pool_.OnPacket(packet, AddressOf(3, worker)).verdict;
  }
  // Nothing has changed: the sum still comes out.
  void ExpectWhole() {
    const Action action = pool_.OnPacket(Genuine(From(1)), AddressOf(3, 1));
    EXPECT_EQ(action.verdict, Verdict::kComplete);
    EXPECT_EQ(std::vector<uint8_t>(action.packet.begin(), action.packet.end()),
              Sealed(Result(From(1).header, {10, -14}), job_.keys->results, 9));
  }

  JobSlots job_ = MakeJob(3, 2, 0);
  SlotPool pool_{8};
};

TEST_F(Tagged, forgedPacketsChangeNothing) {
  // Of the same chunk, of the past, of the next one, of the far future, of another slot: with the tag of another
  // worker, of the results, of an earlier epoch's key.
  for (const uint32_t sequence : {9u, 1u, 17u, 1u << 30, 1u << 31, ~0u}) {
    for (const uint16_t slot : {1, 2}) {
      const Packet packet =
          With(From(1), [&](wire::Header& header) { header.sequence = sequence, header.slot = slot; });
      for (const wire::PacketKey& key : {job_.keys->contributions[0], job_.keys->results, wire::RandomKey(77)}) {
        EXPECT_EQ(Give(Sealed(Bytes(packet), key, sequence), 1), Verdict::kForged);
      }
      EXPECT_EQ(Give(Bytes(packet), 1), Verdict::kForged) << "without a tag";
    }
  }
  ExpectWhole();
}

TEST_F(Tagged, aPacketOfOneWrapEarlierIsForged) {
  const std::vector<uint8_t> early = Genuine(AtSequence(17, From(0)));
  EXPECT_EQ(Give(early), Verdict::kAdded);
  EXPECT_EQ(Give(Genuine(AtSequence(17, From(1))), 1), Verdict::kComplete);
  // The job goes on, until the same sequence comes again.
  for (uint64_t position = 17 + (1 << 30); position < uint64_t{3} << 31; position += 1 << 30) {
    const Packet first = AtSequence(static_cast<uint32_t>(position), From(0));
    const Packet second = AtSequence(static_cast<uint32_t>(position), From(1));
    ASSERT_EQ(Give(Sealed(Bytes(first), job_.keys->contributions[0], position)), Verdict::kAdded) << position;
    ASSERT_EQ(Give(Sealed(Bytes(second), job_.keys->contributions[1], position), 1), Verdict::kComplete);
  }
  EXPECT_EQ(Give(early), Verdict::kForged);
}

TEST_F(Tagged, flippedBitsChangeNothing) {
  const std::vector<uint8_t> genuine = Genuine(From(1));
  for (size_t bit = 0; bit < 8 * genuine.size(); ++bit) {
    std::vector<uint8_t> packet = genuine;
    packet[bit / 8] ^= 1 << bit % 8;
    EXPECT_NE(Give(packet, 1), Verdict::kComplete) << "bit " << bit;
    EXPECT_NE(Give(packet, 1), Verdict::kAdded) << "bit " << bit;
  }
  ExpectWhole();
}

// A job that has completed `at`, and may go on by 40.
class WithReach : public testing::TestWithParam<uint64_t> {
 protected:
  explicit WithReach(bool has_keys = false) {
    job_.first_position = GetParam();
    job_.reach = 40;
    if (has_keys) GiveKeys(job_);
    pool_.AddJob(job_);
  }

  Verdict Give(int64_t ahead, uint16_t worker = 0, uint16_t slot = 1) {
    const uint64_t position = GetParam() + static_cast<uint64_t>(ahead);
    const Packet packet = With(AtSequence(static_cast<uint32_t>(position), From(worker)),
                               [&](wire::Header& header) { header.slot = slot; });
    const bool tagged = job_.keys.has_value();
    const auto bytes = tagged ? Sealed(Bytes(packet), job_.keys->contributions[worker], position) : Bytes(packet);
    return pool_.OnPacket(bytes, AddressOf(3, worker)).verdict;
  }

  JobSlots job_ = MakeJob(3, 2);
  SlotPool pool_{8};
};

TEST_P(WithReach, whatIsFurtherAheadThanAnyWorkerCanBeIsDropped) {
  EXPECT_EQ(Give(41), Verdict::kTooFar);
  EXPECT_EQ(Give((1 << 30)), Verdict::kTooFar);
  EXPECT_EQ(Give((int64_t{1} << 31) - 1), Verdict::kTooFar);
  EXPECT_TRUE(pool_.VersionOf(1, 0).empty);
  EXPECT_EQ(Give(1), Verdict::kAdded);
  EXPECT_EQ(Give(41, 1), Verdict::kTooFar);
  EXPECT_EQ(Give(40), Verdict::kAdded) << "one worker's contribution alone, which anybody may have sent";
  EXPECT_EQ(Give(41), Verdict::kTooFar);
  EXPECT_EQ(Give(1, 1), Verdict::kStale);
  EXPECT_EQ(pool_.Count(Verdict::kTooFar), 5u);
}

TEST_P(WithReach, itGoesOnWithWhatIsComplete) {
  EXPECT_EQ(Give(40), Verdict::kAdded);
  EXPECT_EQ(Give(40, 1), Verdict::kComplete);
  EXPECT_EQ(Give(80, 0, 2), Verdict::kAdded);
  EXPECT_EQ(Give(81, 0, 2), Verdict::kTooFar);
  EXPECT_EQ(Give(30, 0, 3), Verdict::kAdded);
  EXPECT_EQ(Give(30, 1, 3), Verdict::kComplete);
  EXPECT_EQ(Give(80, 1, 2), Verdict::kComplete) << "what was complete later, but lies before, takes nothing back";
  EXPECT_EQ(Give(120, 0, 3), Verdict::kAdded);
  EXPECT_EQ(Give(121, 0, 3), Verdict::kTooFar);
}

TEST_P(WithReach, whatLiesBehindIsStale) {
  EXPECT_EQ(Give(40), Verdict::kAdded);
  EXPECT_EQ(Give(40, 1), Verdict::kComplete);
  for (const int64_t behind : {1, 41, 1 << 30}) EXPECT_EQ(Give(40 - behind), Verdict::kStale) << behind;
  EXPECT_EQ(Give(40), Verdict::kResend);
}

// Where sequences begin, in the middle of them, and around their wrap.
INSTANTIATE_TEST_SUITE_P(From, WithReach,
                         testing::Values(0, 1000, (uint64_t{1} << 31) - 20, (uint64_t{1} << 32) - 40,
                                         (uint64_t{1} << 32) - 1, uint64_t{1} << 32));

class TaggedWithReach : public WithReach {
 protected:
  TaggedWithReach() : WithReach(/*has_keys=*/true) {}
};

TEST_P(TaggedWithReach, itIsLookedAtAfterTheTag) {
  EXPECT_EQ(Give(41), Verdict::kTooFar);
  job_.keys->contributions[0] = wire::RandomKey(77);
  EXPECT_EQ(Give(41), Verdict::kForged);
}

INSTANTIATE_TEST_SUITE_P(From, TaggedWithReach, testing::Values(1000));

TEST(SlotPool, aTagWherePacketsHaveNoneIsMalformed) {
  SlotPool pool(8);
  pool.AddJob(MakeJob(3, 2));
  const std::vector<uint8_t> packet = Sealed(Bytes(From(0)), wire::RandomKey(1), 9);
  EXPECT_EQ(pool.OnPacket(packet, AddressOf(3, 0)).verdict, Verdict::kMalformed);
}

TEST(SlotPool, AddJob_aKeyForEachWorkerOrNone) {
  SlotPool pool(8);
  JobSlots job = MakeJob(3, 2);
  GiveKeys(job);
  job.keys->contributions.pop_back();
  EXPECT_THROW(pool.AddJob(job), std::invalid_argument);
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
