#include <gtest/gtest.h>

#include <span>
#include <stdexcept>
#include <vector>

#include "../tests/xla_ffi/switch/slot_packets.h"
#include "switch/slot_pool.h"

namespace passing {
namespace {

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
  // Packets are of the same chunk, the past, the next one, the far future or another slot, with the tag of another
  // worker, of the results or of an earlier epoch's key.
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

TEST_F(Tagged, packetsWithoutLanesHaveTags) {
  Packet nothing = With(From(1, {}), [](wire::Header& header) {
    header.flags = wire::kFlagBare | wire::kFlagNoResult, header.element_count = 2;
  });
  const auto sealed = [&](const wire::PacketKey& key, wire::Header header) {
    std::vector<uint8_t> packet(wire::kHeaderBytes);
    wire::Encode(header, packet.data());
    return Sealed(packet, key, 9);
  };
  std::vector<uint8_t> changed = sealed(job_.keys->contributions[1], nothing.header);
  changed[3] ^= wire::kFlagNoResult;
  EXPECT_EQ(Give(changed, 1), Verdict::kForged);
  EXPECT_EQ(Give(sealed(job_.keys->contributions[0], nothing.header), 1), Verdict::kForged);
  const Action action = pool_.OnPacket(sealed(job_.keys->contributions[1], nothing.header), AddressOf(3, 1));
  EXPECT_EQ(action.verdict, Verdict::kComplete);
  EXPECT_EQ(std::vector<uint8_t>(action.packet.begin(), action.packet.end()),
            Sealed(Result(From(0).header, {5, -7}), job_.keys->results, 9));
  EXPECT_EQ(action.bare_workers, 0b10u);
  wire::Header result = nothing.header;
  result.type = wire::PacketType::kResult;
  result.worker = wire::kEveryWorker;
  EXPECT_EQ(std::vector<uint8_t>(action.bare.begin(), action.bare.end()), sealed(job_.keys->results, result));
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

}  // namespace
}  // namespace passing
