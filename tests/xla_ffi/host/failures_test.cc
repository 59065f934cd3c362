#include "host/failures.h"

#include <gtest/gtest.h>

namespace passing {
namespace {

const JobConfig kJob{
    .name = "train",
    .rank = 3,
    .world_size = 8,
    .shards = {{.job = 1, .epoch = 2, .name = "left:7170"}, {.job = 4, .epoch = 1, .name = "right:7170"}},
    .slots_per_shard = 256};

Stall StallOf(SumKey key) { return {.site_name = "train.py:41", .key = key}; }

TEST(DeadlineExceeded, aResultIsMissing) {
  Stall stall = StallOf({.site = 5, .execution = 6, .step = 7});
  stall.shard = 1, stall.slot = 9, stall.version = 1, stall.sequence = 265;
  const Failure failure = DeadlineExceeded(kJob, stall, 60'040'000, "Missing: rank 5.", 60);
  EXPECT_EQ(failure.kind, "DeadlineExceededError");
  EXPECT_EQ(
      failure.message,
      "train.py:41 (execution 6, step 7) made no progress for 60.0 s: no result for slot 9, version 1, sequence "
      "265 of right:7170. This is rank 3 of 8, job 'train', epoch 2. Missing: rank 5. Another host is slow or stopped, "
      "or runs another program, or packets to the switch are lost: look at the other hosts' logs and at the "
      "switch's. If hosts may wait that long for each other, raise deadline_s (now 60.0).");
}

TEST(DeadlineExceeded, rankZeroIsLateOrElsewhere) {
  Stall stall = StallOf({});
  stall.waits_for_order = true;
  EXPECT_EQ(
      DeadlineExceeded(kJob, stall, 2'000'000, "", 2).message,
      "train.py:41 (execution 0, step 0) made no progress for 2.0 s: rank 0 hasn't started this sum. This is rank "
      "3 of 8, job 'train', epoch 2. Rank 0 is slow or stopped, or runs another program: look at its log. If hosts may "
      "wait that long for each other, raise deadline_s (now 2.0).");
  JobConfig leader = kJob;
  leader.rank = 0;
  EXPECT_EQ(
      DeadlineExceeded(leader, stall, 2'000'000, "", 2).message,
      "train.py:41 (execution 0, step 0) made no progress for 2.0 s: another host hasn't come to this sum. This is "
      "rank 0 of 8, job 'train', epoch 2. It is slow or stopped, or runs another program: look at the other hosts' "
      "logs. If hosts may wait that long for each other, raise deadline_s (now 2.0).");
  stall.job_is_at = "eval.py:3";
  EXPECT_EQ(DeadlineExceeded(kJob, stall, 2'000'000, "", 2).message,
            "train.py:41 (execution 0, step 0) made no progress for 2.0 s: rank 0 comes to eval.py:3 first, which this "
            "host hasn't started. This is rank 3 of 8, job 'train', epoch 2. The hosts run different programs, or this "
            "one is "
            "late with that sum. If hosts may wait that long for each other, raise deadline_s (now 2.0).");
}

TEST(DeadlineExceeded, thisHostsGpuIsLate) {
  Stall stall = StallOf({});
  stall.waits_for_gpu = true;
  stall.job_is_at = "eval.py:3";
  EXPECT_EQ(
      DeadlineExceeded(kJob, stall, 2'000'000, "", 2).message,
      "train.py:41 (execution 0, step 0) made no progress for 2.0 s: this host's GPU hasn't delivered what is to be "
      "sent next. This is rank 3 of 8, job 'train', epoch 2. What runs on that GPU before the copy is slow or never "
      "ends: "
      "look at this host's program. If hosts may wait that long for each other, raise deadline_s (now 2.0).");
}

TEST(NoJob, namesTheNumbers) {
  JobConfig job = kJob;
  job.shards[1].slot_first = 65'500;
  EXPECT_EQ(NoJob(job), "rank 3 of 8, 256 slots from 0 65500 and 360 lanes in a chunk make no job");
}

}  // namespace
}  // namespace passing
