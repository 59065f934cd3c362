#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>

#include "../tests/xla_ffi/host/support/cluster.h"
#include "../tests/xla_ffi/host/support/workload.h"
#include "host/all_reduce.h"
#include "host/order/order.h"
#include "host/sums/sum_plan.h"
#include "wire/lanes.h"

namespace passing {
namespace {

// In the network's time, not the machine's: a loss costs the last sum no more than the first.
TEST(AllReduceCluster, lossRecoveryStaysAsFast) {
  ClusterOptions options{.world_size = 4, .slot_count = 1024, .lanes_per_chunk = 360, .faults = {.loss = 0.01}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  workload.AddSite(DType::kInt32, {1 << 20}, 1);
  std::vector<uint64_t> resent{0};
  for (int execution = 0; execution < 6; ++execution) {
    workload.Execute({0}, 1);
    ASSERT_TRUE(cluster.Run(cluster.network().now_us() + 600'000'000)) << Stalls(cluster, options.world_size);
    resent.push_back(cluster.rank(0).stats().packets_resent);
  }
  // 2,913 chunks a sum; on its way to the switch each of 4 contributions may be lost, which all ranks resend.
  EXPECT_LT(resent[6] - resent[5], 2 * (resent[1] - resent[0]));
  EXPECT_LT(resent[6] - resent[5], 2913u * 5 / 100 * 3);
  workload.Check();
}

// Exponents are maxima, too, but travel ahead of data. Maxima of elements are data: the same packets come and go, the
// same are lost, and it is noticed as soon, as in a sum of as many int32.
TEST(AllReduceCluster, maximaLoseAsSumsDo) {
  const auto run = [](Op op) {
    ClusterOptions options{.world_size = 4, .slot_count = 1024, .lanes_per_chunk = 360, .faults = {.loss = 0.01}};
    Cluster cluster(1, options);
    Workload workload(cluster, options.world_size);
    workload.AddSite(DType::kInt32, {1 << 20}, 1, op);
    workload.Execute({0}, 1);
    EXPECT_TRUE(cluster.Run(600'000'000)) << Stalls(cluster, options.world_size);
    workload.Check();
    return std::pair(workload.call(0, 0, 0).done_us, cluster.rank(0).stats().packets_resent);
  };
  const auto [sums_us, sums_resent] = run(Op::kSum);
  EXPECT_GT(sums_resent, 0u);
  EXPECT_EQ(run(Op::kMax), std::pair(sums_us, sums_resent));
}

// All ranks send to one port, whose buffer holds less than a tenth of their windows.
TEST(AllReduceCluster, manyRanksThroughOnePortGetOn) {
  ClusterOptions options{.world_size = 16,
                         .slot_count = 1024,
                         .lanes_per_chunk = 360,
                         .faults = {.reorder = 1, .reorder_us = 2},
                         .port = Port{.bytes_per_us = 125, .buffer_bytes = 100'000}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  workload.AddSite(DType::kInt32, {100'000}, 1);
  workload.Execute({0}, 1);
  EXPECT_TRUE(cluster.Run(2'000'000)) << Stalls(cluster, options.world_size);
  workload.Check();
}

// One rank stops for a while. The others don't send all that they have in flight again, neither then nor when it is
// back, and the next sums take as long as ever.
TEST(AllReduceCluster, aRankThatWasStoppedLeavesNoTrace) {
  ClusterOptions options{.world_size = 4,
                         .slot_count = 1024,
                         .lanes_per_chunk = 360,
                         .faults = {},
                         .port = Port{.bytes_per_us = 125, .buffer_bytes = 10'000'000}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  workload.AddSite(DType::kInt32, {250'000}, 1);
  const auto run = [&] {
    const int64_t start_us = cluster.network().now_us();
    workload.Execute({0}, 1);
    EXPECT_TRUE(cluster.Run(start_us + 2'000'000)) << Stalls(cluster, options.world_size);
    return cluster.network().now_us() - start_us;
  };
  run();
  const int64_t usual_us = run();
  cluster.Pause(3, 100'000);
  const int64_t paused_us = run();
  EXPECT_LT(cluster.rank(0).stats().packets_resent, 60u);
  EXPECT_LT(paused_us, 100'000 + usual_us);
  EXPECT_LT(run(), usual_us * 101 / 100);
  workload.Check();
}

// Data that was sent at guessed exponents counts if it was exact on all hosts, and is sent again if not.
TEST(AllReduceCluster, aSmallSumTakesOneRoundTripWhileItsExponentsStay) {
  ClusterOptions options{.world_size = 2, .slot_count = 64, .lanes_per_chunk = 360, .faults = {}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  workload.AddSite(DType::kFloat32, {256}, 1);
  const auto run = [&](float value) {
    workload.Execute({0}, 1, 0, value);
    const uint64_t sent = cluster.rank(0).stats().packets_sent;
    EXPECT_TRUE(cluster.Run(cluster.network().now_us() + 600'000'000));
    return cluster.rank(0).stats().packets_sent - sent;
  };
  EXPECT_EQ(run(1), 3u);  // two packets of data, one of exponents: the first guess fits numbers of that size
  EXPECT_EQ(run(1.5), 3u);
  EXPECT_EQ(run(20), 3u);   // there is room for elements that grow
  EXPECT_EQ(run(1e9), 5u);  // but not so much
  EXPECT_EQ(run(1.5e9), 3u);
  EXPECT_EQ(run(0.1), 5u);  // its last bits are too small beside those of the last sum
  EXPECT_EQ(run(0.1), 3u);
  EXPECT_EQ(cluster.rank(1).stats().guesses_right, 5u);
  EXPECT_EQ(cluster.rank(1).stats().guesses_wrong, 2u);
  workload.Check();
}

// A small sum that is issued while a large one is on its way comes before it: at once, and also where the order of
// earlier executions says otherwise.
TEST(AllReduceCluster, aSmallSumIsNotStuckBehindALargeOne) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterOptions options{.world_size = 3, .slot_count = 64, .lanes_per_chunk = 360, .faults = {}};
    options.faults.loss = seed % 2 == 0 ? 0.01 : 0;
    Cluster cluster(seed, options);
    Workload workload(cluster, options.world_size);
    workload.AddSite(DType::kInt32, {500'000}, 1);  // 22 segments
    workload.AddSite(DType::kFloat32, {100}, 1);
    for (uint32_t execution = 0; execution < 5; ++execution) {
      SCOPED_TRACE("execution " + std::to_string(execution));
      const int64_t began_us = cluster.network().now_us();
      workload.Execute({0}, /*spread_us=*/1);
      // Twice when all is over, so that the order learns this; then in the midst of the large one.
      if (execution == 0 || execution == 1) {
        ASSERT_TRUE(cluster.Run(began_us + 60'000'000)) << Stalls(cluster, options.world_size);
      } else {
        cluster.Run(began_us + 100);
      }
      const int64_t issued_us = cluster.network().now_us();
      workload.Execute({1}, /*spread_us=*/50);
      ASSERT_TRUE(cluster.Run(issued_us + 60'000'000)) << Stalls(cluster, options.world_size);
      if (execution < 2) continue;
      for (uint32_t rank = 0; rank < options.world_size; ++rank) {
        EXPECT_LT(workload.call(1, execution, rank).done_us, workload.call(0, execution, rank).done_us);
      }
    }
    ASSERT_FALSE(cluster.protocol_failure());
    workload.Check();
  }
}

// Rank 0 deviates from what the followers guess and send, as each of them gets to its sums at another time; packets of
// void and of true positions overtake each other.
TEST(AllReduceCluster, wrongGuessesUnderLossAndReordering) {
  for (const uint32_t shard_count : {1u, 3u}) {
    SCOPED_TRACE(shard_count);
    ClusterOptions options{.world_size = 3,
                           .shard_count = shard_count,
                           .slot_count = 16,
                           .lanes_per_chunk = 64,
                           .faults = {.loss = 0.05, .duplicate = 0.3, .reorder = 0.2, .reorder_us = 200'000},
                           .order_delay_us = 3000,
                           .first_position = (uint64_t{1} << 32) - 100};
    Cluster cluster(1, options);
    Workload workload(cluster, options.world_size);
    for (int site = 0; site < 4; ++site) workload.AddSite(site == 0 ? DType::kFloat32 : DType::kInt32, {400, 100}, 1);
    uint64_t guesses = 0;
    for (int execution = 0; execution < 12; ++execution) {
      workload.Execute({0, 1, 2, 3}, /*spread_us=*/3000, /*special=*/0.001);
      ASSERT_TRUE(cluster.Run(cluster.network().now_us() + 60'000'000)) << Stalls(cluster, options.world_size);
      guesses = cluster.rank(1).stats().order_rollbacks;
    }
    ASSERT_FALSE(cluster.protocol_failure());
    EXPECT_GE(guesses, 8u);
    EXPECT_GT(cluster.pool(shard_count - 1).Count(Verdict::kStale), 0u);
    workload.Check();
  }
}

// Adds something to one lane of a packet now and then.
std::function<void(std::vector<uint8_t>&)> AltersLanes(uint64_t seed, uint64_t one_in) {
  return [random = std::mt19937_64(seed), one_in](std::vector<uint8_t>& packet) mutable {
    if (random() % one_in != 0) return;
    wire::Header header;
    ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
    uint8_t* lanes = &packet[wire::kHeaderBytes];
    const size_t at = random() % header.element_count;
    wire::StoreLane(lanes, at, wire::LoadLane(lanes, at) + static_cast<uint32_t>(random() | 1));
  };
}

ClusterOptions CheckedCluster(uint64_t seed) {
  return {.world_size = 3,
          .slot_count = 16,
          .lanes_per_chunk = 64,
          .faults = {.loss = 0.01},
          .check_key = SumCheck::Key{static_cast<uint8_t>(seed)}};
}

// A large sum and one that guesses, three times.
void ExecuteFloats(Workload& workload) {
  workload.AddSite(DType::kFloat32, {30'000}, 1);
  workload.AddSite(DType::kFloat32, {100}, 1);
  for (int execution = 0; execution < 3; ++execution) workload.Execute({0, 1}, 200, 0.001);
}

// Packets that somebody else sends in the switch's name don't hold up anybody: the switch's own results come as well.
TEST(AllReduceCluster, alteredResultsAreDropped) {
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    ClusterOptions options = CheckedCluster(seed);
    options.alter_result = AltersLanes(seed, 20);
    Cluster cluster(seed, options);
    Workload workload(cluster, options.world_size);
    ExecuteFloats(workload);
    ASSERT_TRUE(cluster.Run(600'000'000));
    for (uint32_t rank = 0; rank < options.world_size; ++rank) wrong += cluster.rank(rank).stats().sums_wrong;
    workload.Check();
  }
  EXPECT_GT(wrong, 500u);
}

TEST(AllReduceCluster, alteredContributionsMakeNoWrongSum) {
  int failures = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    ClusterOptions options = CheckedCluster(seed);
    options.alter_contribution = AltersLanes(seed, 1000);
    Cluster cluster(seed, options);
    Workload workload(cluster, options.world_size);
    ExecuteFloats(workload);
    cluster.Run(100'000'000);
    for (uint32_t rank = 0; rank < options.world_size; ++rank) {
      if (!cluster.rank(rank).failure()) continue;
      EXPECT_EQ(cluster.rank(rank).failure()->kind, "WrongSumError");
      ++failures;
    }
    for (uint32_t rank = 0; rank < options.world_size; ++rank) cluster.rank(rank).Fail({"HostLostError", "told"});
    workload.Check(/*may_fail=*/true);
  }
  EXPECT_GT(failures, 30);
}

// A host whose program differs: nobody gets a sum, and everybody can say where the others are.
TEST(AllReduceCluster, differentProgramsStallByName) {
  ClusterOptions options{.world_size = 2, .faults = {}};
  Cluster cluster(1, options);
  float a[10] = {}, b[10] = {};
  int finished = 0;
  const auto start = [&](uint32_t rank, uint64_t site, const char* name, float* data) {
    auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = name, .dtype = DType::kFloat32, .leaf_elements = {10}});
    cluster.rank(rank).Start({.key = {.site = site},
                              .spec = shape,
                              .inputs = {data},
                              .outputs = {data},
                              .done =
                                  [&](const Failure* failure) {
                                    EXPECT_EQ(failure->kind, "DeadlineExceededError");
                                    ++finished;
                                  }},
                             0);
  };
  start(0, 1, "a.py:1", a);
  start(1, 2, "b.py:2", b);
  EXPECT_FALSE(cluster.Run(1'000'000));
  const auto leader = cluster.rank(0).OldestStall();
  EXPECT_EQ(leader->site_name, "a.py:1");
  EXPECT_FALSE(leader->waits_for_order);
  EXPECT_EQ(leader->slot, Cluster::kSlotFirst);
  EXPECT_EQ(cluster.pool().VersionOf(leader->slot, leader->version).bitmap, 1u);  // rank 1 is missing
  const auto follower = cluster.rank(1).OldestStall();
  EXPECT_EQ(follower->site_name, "b.py:2");
  EXPECT_TRUE(follower->waits_for_order);
  EXPECT_EQ(follower->job_is_at, "a.py:1");
  for (uint32_t rank : {0u, 1u}) cluster.rank(rank).Fail({"DeadlineExceededError", "60 s"});
  EXPECT_EQ(finished, 2);
  start(0, 3, "c.py:3", a);  // after a failure: at once
  EXPECT_EQ(finished, 3);
  EXPECT_TRUE(cluster.rank(0).idle());
}

// A GPU that goes no further holds its own sum, and its host can say so, wherever the sum's place is. The others see
// that this rank is missing.
TEST(AllReduceCluster, aGpuThatGoesNoFurtherStallsByName) {
  for (const uint32_t late : {0u, 1u}) {
    SCOPED_TRACE(late);
    ClusterOptions options{.world_size = 2, .slot_count = 64, .lanes_per_chunk = 360, .faults = {}};
    Cluster cluster(1, options);
    std::vector<float> data[2] = {std::vector<float>(50'000, 1), std::vector<float>(50'000, 2)};
    const auto shape = std::make_shared<SumSpec>(
        SumSpec{.site_name = "a.py:1", .dtype = DType::kFloat32, .leaf_elements = {data[0].size()}});
    const SumKey key{.site = 1};
    int done = 0;
    uint64_t written = 0;
    for (const uint32_t rank : {0u, 1u}) {
      Sum sum{.key = key,
              .spec = shape,
              .inputs = {data[rank].data()},
              .outputs = {data[rank].data()},
              .done = [&](const Failure* failure) { done += failure == nullptr; }};
      if (rank == late) {
        sum.pieces.emplace().ready_elements = 30'000;
        sum.pieces->written = [&](uint64_t elements) { written = elements; };
      }
      cluster.rank(rank).Start(std::move(sum), 0);
    }
    EXPECT_FALSE(cluster.Run(1'000'000));
    EXPECT_EQ(written, 23'040u);  // the segments that are there as a whole
    const auto stall = cluster.rank(late).OldestStall();
    EXPECT_TRUE(stall->waits_for_gpu);
    EXPECT_FALSE(stall->waits_for_order);
    const auto other = cluster.rank(1 - late).OldestStall();
    EXPECT_FALSE(other->waits_for_gpu);
    EXPECT_FALSE(other->waits_for_order);  // it has placed the next segment, or takes for granted that rank 0 has
    cluster.rank(late).OnReady({.site = 2}, 50'000);  // no such sum
    EXPECT_EQ(cluster.rank(late).OldestStall()->waits_for_gpu, true);
    cluster.rank(late).OnReady(key, 46'080);
    EXPECT_FALSE(cluster.Run(2'000'000));
    EXPECT_EQ(written, 46'080u);
    EXPECT_EQ(done, 0);
    cluster.rank(late).OnReady(key, 50'000);
    EXPECT_TRUE(cluster.Run(3'000'000));
    EXPECT_EQ(done, 2);
    EXPECT_EQ(data[0], std::vector<float>(50'000, 3));
    EXPECT_EQ(data[1], data[0]);
    cluster.rank(late).OnReady(key, 50'000);  // late itself
    EXPECT_TRUE(cluster.rank(late).idle());
  }
}

}  // namespace
}  // namespace passing
