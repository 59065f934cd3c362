// A pool counts for which worker the others wait.
#include "switch/job_counts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "../tests/xla_ffi/switch/slot_packets.h"
#include "switch/slot_pool.h"

namespace passing {
namespace {

// A pool with a job of three workers, to which packets come at given times.
class JobCountsTest : public testing::Test {
 protected:
  JobCountsTest() {
    pool_.SetTime(500);
    pool_.AddJob(MakeJob(3, 3));
  }

  Verdict At(uint64_t now_us, uint16_t worker, uint16_t slot = 1, uint32_t sequence = 9) {
    pool_.SetTime(now_us);
    const Packet packet = With(AtSequence(sequence, From(worker)), [&](wire::Header& header) { header.slot = slot; });
    return pool_.OnPacket(Bytes(packet), AddressOf(3, worker)).verdict;
  }

  SlotPool pool_{4};
};

TEST_F(JobCountsTest, theOthersWaitForTheLastWorker) {
  At(1000, 0);
  At(1200, 1);
  EXPECT_EQ(At(5200, 2), Verdict::kComplete);
  pool_.SetTime(6000);
  const JobCounts counts = pool_.CountsOf(3).value();
  EXPECT_EQ(counts.chunks, 1);
  EXPECT_EQ(counts.lanes, 2);
  EXPECT_EQ(counts.workers[2].last, 1);
  EXPECT_EQ(counts.workers[2].waited_us, 4000);
  EXPECT_EQ(counts.workers[2].silent_us, 800);
  for (const size_t worker : {0, 1}) {
    EXPECT_EQ(counts.workers[worker].last, 0);
    EXPECT_EQ(counts.workers[worker].waited_us, 0);
    EXPECT_EQ(counts.workers[worker].contributions, 1);
  }
}

TEST_F(JobCountsTest, aWaitThatGoesOnCountsAlready) {
  for (const uint16_t slot : {0, 1}) {
    At(1000, 0, slot, slot);
    At(1200, 1, slot, slot);
  }
  pool_.SetTime(2200);
  EXPECT_EQ(pool_.CountsOf(3)->workers[2].waited_us, 1000);
  At(3200, 2, 0, 0);
  EXPECT_EQ(pool_.CountsOf(3)->workers[2].waited_us, 2000);
  At(3300, 2, 1, 1);
  pool_.SetTime(9000);
  const JobCounts counts = pool_.CountsOf(3).value();
  EXPECT_EQ(counts.workers[2].waited_us, 2100);
  EXPECT_EQ(counts.workers[0].waited_us, 0);
}

TEST_F(JobCountsTest, nobodyWaitsForAWorkerThatHasGoneOn) {
  At(1000, 0, 0, 0);
  At(1000, 1, 0, 0);  // its packet was lost, and nobody needs that chunk any more
  for (const uint16_t worker : {0, 1, 2}) At(1100 + worker, worker, 1, 1);
  pool_.SetTime(9000);
  EXPECT_EQ(pool_.CountsOf(3)->workers[2].waited_us, 1);
}

TEST_F(JobCountsTest, waitsSideBySideCountOnce) {
  for (const uint16_t slot : {0, 1, 2}) {
    At(1000, 0, slot, slot);
    At(1000, 1, slot, slot);
  }
  for (const uint16_t slot : {0, 1, 2}) At(3000 + slot, 2, slot, slot);
  const JobCounts counts = pool_.CountsOf(3).value();
  EXPECT_EQ(counts.workers[2].last, 3);
  EXPECT_EQ(counts.workers[2].waited_us, 2002);
}

TEST_F(JobCountsTest, chunksThatAreSentAgainCountApart) {
  At(1000, 0);
  EXPECT_EQ(At(1100, 0), Verdict::kDuplicate);
  At(1200, 1);
  At(1300, 2);
  EXPECT_EQ(At(1400, 1), Verdict::kResend);
  const JobCounts counts = pool_.CountsOf(3).value();
  EXPECT_EQ(counts.workers[0].resends, 1);
  EXPECT_EQ(counts.workers[1].resends, 1);
  EXPECT_EQ(counts.workers[1].contributions, 1);
  EXPECT_EQ(counts.workers[1].silent_us, 200);  // a chunk that was sent again is no progress
}

TEST_F(JobCountsTest, theOldestOfTheChunksThatWait) {
  At(1000, 0, 0, 0);
  At(1500, 0, 1, 1);
  At(1600, 2, 0, 0);
  pool_.SetTime(2500);
  const JobCounts counts = pool_.CountsOf(3).value();
  EXPECT_EQ(counts.waiting, 2);
  ASSERT_TRUE(counts.oldest.has_value());
  EXPECT_EQ(counts.oldest->slot, 1);
  EXPECT_EQ(counts.oldest->sequence, 1);
  EXPECT_EQ(counts.oldest->bitmap, 0b001);
  EXPECT_EQ(counts.oldest->waited_us, 1000);
  EXPECT_FALSE(pool_.CountsOf(4).has_value());
}

TEST_F(JobCountsTest, theFirstInTheOrderOfThoseThatCameTogether) {
  for (const uint32_t sequence : {6, 3, 4, 5}) At(1000, 0, sequence % 4, sequence);  // 4 is in the first slot
  EXPECT_EQ(pool_.CountsOf(3)->oldest->sequence, 3);
}

TEST_F(JobCountsTest, nobodyIsLastOfOne) {
  pool_.AddJob(MakeJob(3, 1));
  EXPECT_EQ(At(1000, 0), Verdict::kComplete);
  const JobCounts counts = pool_.CountsOf(3).value();
  EXPECT_EQ(counts.chunks, 1);
  EXPECT_EQ(counts.workers[0].last, 0);
}

TEST(JobCounts, chunksOfAParentWaitForItsResult) {
  SlotPool pool(8);
  pool.AddJob(MakeChildJob());
  for (const uint16_t worker : {0, 1}) pool.OnPacket(Bytes(From(worker)), AddressOf(3, worker));
  EXPECT_EQ(pool.CountsOf(3)->oldest->bitmap, 0b11);
  EXPECT_EQ(pool.CountsOf(3)->chunks, 1);
  pool.OnPacket(Bytes(FromParent()), kParentAddress);
  EXPECT_EQ(pool.CountsOf(3)->waiting, 0);
}

TEST_F(JobCountsTest, aNewEpochCountsAnew) {
  At(1000, 0);
  pool_.AddJob(MakeJob(3, 2, 0, 4, 2));
  EXPECT_EQ(pool_.CountsOf(3)->workers.size(), 2);
  EXPECT_EQ(pool_.CountsOf(3)->waiting, 0);
}

}  // namespace
}  // namespace passing
