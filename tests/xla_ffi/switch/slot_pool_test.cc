// The conformance suite says what becomes of packets: it plays its exchanges on this pool, too.
#include "switch/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

#include "../tests/xla_ffi/switch/slot_packets.h"

namespace passing {
namespace {

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

// A job's slots are as long as its packets, and its neighbours' stay what they were.
TEST(SlotPool, onPacket_longChunks) {
  SlotPool pool(8);
  JobSlots job = MakeJob(3, 2);
  job.lanes_per_chunk = wire::kMaxLanes;
  pool.AddJob(job);
  const Lanes lanes(wire::kMaxLanes, 5), sum(wire::kMaxLanes, 12);
  for (uint16_t slot = 0; slot < 4; ++slot) {
    for (uint8_t version = 0; version < 2; ++version) {
      const auto there = [&](auto& header) { header.slot = slot, header.version = version; };
      EXPECT_EQ(pool.OnPacket(Bytes(With(From(0, lanes), there)), AddressOf(3, 0)).verdict, Verdict::kAdded);
    }
  }
  for (uint16_t slot = 0; slot < 4; ++slot) {
    for (uint8_t version = 0; version < 2; ++version) {
      const auto there = [&](auto& header) { header.slot = slot, header.version = version; };
      const Packet last = With(From(1, Lanes(wire::kMaxLanes, 7)), there);
      const Action action = pool.OnPacket(Bytes(last), AddressOf(3, 1));
      EXPECT_TRUE(std::ranges::equal(action.packet, Result(last.header, sum)));
    }
  }
}

TEST(SlotPool, onPacket_moreLanesThanAreTheJobs) {
  SlotPool pool(8);
  JobSlots job = MakeJob(3, 1);
  job.lanes_per_chunk = 500;
  pool.AddJob(job);
  EXPECT_EQ(pool.OnPacket(Bytes(From(0, Lanes(501, 1))), AddressOf(3, 0)).verdict, Verdict::kMalformed);
  EXPECT_TRUE(pool.VersionOf(1, 0).empty);
  EXPECT_EQ(pool.OnPacket(Bytes(From(0, Lanes(500, 1))), AddressOf(3, 0)).verdict, Verdict::kComplete);
  job.lanes_per_chunk = wire::kMaxLanes + 1;
  EXPECT_THROW(pool.AddJob(job), std::invalid_argument);
  job.lanes_per_chunk = 0;
  EXPECT_THROW(pool.AddJob(job), std::invalid_argument);
}

TEST(SlotPool, addJob_newEpochStartsEmpty) {
  SlotPool pool(4);
  pool.AddJob(MakeJob(3, 2));
  pool.OnPacket(Bytes(From(0, {5})), AddressOf(3, 0));
  pool.AddJob(MakeJob(3, 2, 0, 4, 2));
  EXPECT_TRUE(pool.VersionOf(1, 0).empty);
  EXPECT_TRUE(pool.VersionOf(4, 0).empty);  // there is no such slot, and no such version
  EXPECT_TRUE(pool.VersionOf(1, 2).empty);
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

}  // namespace
}  // namespace passing
