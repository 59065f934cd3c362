#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>

#include "../tests/xla_ffi/host/support/cluster.h"
#include "host/all_reduce.h"
#include "host/order/order.h"
#include "host/sums/sum_plan.h"
#include "wire/lanes.h"

namespace passing {
namespace {

// In the network's time, not the machine's: a loss costs the last sum no more than the first.
TEST(AllReduceCluster, lossRecoveryStaysAsFast) {
  ClusterOptions options{.world_size = 4, .slot_count = 1024, .lanes_per_chunk = 360, .faults = {.loss = 0.01}};
  options.plain = true;
  Cluster cluster(1, options);
  cluster.AddSite(DType::kInt32, {1 << 20}, 1);
  std::vector<uint64_t> resent{0};
  for (int execution = 0; execution < 4; ++execution) {
    cluster.Execute({0}, 1);
    ASSERT_TRUE(cluster.Run(cluster.now_us() + 600'000'000)) << cluster.Stalls();
    resent.push_back(cluster.rank(0).stats().packets_resent);
  }
  // 2,913 chunks a sum; on its way to the switch each of 4 contributions may be lost, which all ranks resend.
  EXPECT_LT(resent[4] - resent[3], 2 * (resent[1] - resent[0]));
  EXPECT_LT(resent[4] - resent[3], 2913u * 5 / 100 * 3);
}

// Exponents are maxima, too, but travel ahead of data. Maxima of elements are data: the same packets come and go, the
// same are lost, and it is noticed as soon, as in a sum of as many int32.
TEST(AllReduceCluster, maximaLoseAsSumsDo) {
  const auto run = [](Op op) {
    const ClusterOptions options{
        .world_size = 4, .slot_count = 1024, .lanes_per_chunk = 360, .faults = {.loss = 0.01}, .plain = true};
    Cluster cluster(1, options);
    cluster.AddSite(DType::kInt32, {1 << 20}, 1, op);
    cluster.Execute({0}, 1);
    EXPECT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
    return std::pair(cluster.done_us(0, 0), cluster.rank(0).stats().packets_resent);
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
                         .link = Link{.bytes_per_us = 125, .buffer_bytes = 100'000}};
  Cluster cluster(1, options);
  cluster.AddSite(DType::kInt32, {100'000}, 1);
  cluster.Execute({0}, 1);
  EXPECT_TRUE(cluster.Run(2'000'000)) << cluster.Stalls();
}

// They keep it busy, and it drops few of their packets, though its buffer holds no more than 131 of them.
TEST(AllReduceCluster, manyRanksKeepAPortBusy) {
  constexpr uint32_t kRanks = 16, kChunks = 600;
  ClusterOptions options{.world_size = kRanks,
                         .slot_count = 1024,
                         .lanes_per_chunk = 360,
                         .faults = {.delay_us = 0},
                         .link = Link{.bytes_per_us = 12'500, .delay_us = 2, .buffer_bytes = 200'000},
                         .plain = true};
  Cluster cluster(1, options);
  cluster.AddSite(DType::kInt32, {kChunks * 360}, 1);
  int64_t began_us = 0;
  for (int execution = 0; execution < 3; ++execution) {  // the first two show the order
    began_us = cluster.now_us();
    cluster.Execute({0}, 1);
    ASSERT_TRUE(cluster.Run(began_us + 1'000'000)) << cluster.Stalls();
  }
  const double least_us = kChunks * kRanks * (20 + 4 * 360 + 66) / 12'500.0;
  EXPECT_LT(static_cast<double>(cluster.done_us(2, 0) - began_us), least_us / 0.95);
  uint64_t sent = 0, again = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    sent += cluster.rank(rank).stats().packets_sent;
    again += cluster.rank(rank).stats().packets_resent;
  }
  EXPECT_LT(again, sent / 100);
}

// One rank stops for a while. The others don't send all that they have in flight again, neither then nor when it is
// back, and the next sums take as long as ever.
TEST(AllReduceCluster, aRankThatWasStoppedLeavesNoTrace) {
  ClusterOptions options{.world_size = 4,
                         .slot_count = 1024,
                         .lanes_per_chunk = 360,
                         .faults = {},
                         .link = Link{.bytes_per_us = 125, .buffer_bytes = 10'000'000},
                         .plain = true};
  Cluster cluster(1, options);
  cluster.AddSite(DType::kInt32, {250'000}, 1);
  const auto run = [&] {
    const int64_t start_us = cluster.now_us();
    cluster.Execute({0}, 1);
    EXPECT_TRUE(cluster.Run(start_us + 2'000'000)) << cluster.Stalls();
    return cluster.now_us() - start_us;
  };
  run();
  const int64_t usual_us = run();
  cluster.Pause(3, 100'000);
  const int64_t paused_us = run();
  EXPECT_LT(cluster.rank(0).stats().packets_resent, 60u);
  EXPECT_LT(paused_us, 100'000 + usual_us);
  EXPECT_LT(run(), usual_us * 101 / 100);
}

// Data that was sent at guessed exponents counts if it was exact on all hosts, and is sent again if not.
TEST(AllReduceCluster, aSmallSumTakesOneRoundTripWhileItsExponentsStay) {
  Cluster cluster(1, {.world_size = 2, .slot_count = 64, .lanes_per_chunk = 360, .faults = {}});
  const auto shape =
      std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {256}});
  uint32_t execution = 0;
  const auto run = [&](float value) {
    const uint64_t sent = cluster.rank(0).stats().packets_sent;
    std::vector<float> data[2] = {std::vector<float>(256, value), std::vector<float>(256, value)};
    for (const uint32_t rank : {0u, 1u}) {
      cluster.Start(rank, {.key = {.execution = execution},
                           .spec = shape,
                           .inputs = {data[rank].data()},
                           .outputs = {data[rank].data()},
                           .done = [](const Failure* failure) { EXPECT_EQ(failure, nullptr); }});
    }
    ++execution;
    EXPECT_TRUE(cluster.Run(cluster.now_us() + 600'000'000));
    for (const auto& sum : data) EXPECT_EQ(sum, std::vector<float>(256, 2 * value));
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
}

// A small sum that is issued while a large one is on its way comes before it: at once, and also where the order of
// earlier executions says otherwise.
TEST(AllReduceCluster, aSmallSumIsNotStuckBehindALargeOne) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterOptions options{.world_size = 3,
                                 .slot_count = 64,
                                 .lanes_per_chunk = 360,
                                 .faults = {.loss = seed % 2 == 0 ? 0.01 : 0},
                                 .plain = true};
    Cluster cluster(seed, options);
    cluster.AddSite(DType::kInt32, {500'000}, 1);  // 22 segments
    cluster.AddSite(DType::kFloat32, {100}, 1);
    for (int round = 0; round < 5; ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      const int64_t began_us = cluster.now_us();
      const uint32_t large = cluster.Execute({0}, /*spread_us=*/1);
      // Twice when all is over, so that the order learns this; then in the midst of the large one.
      if (round < 2) {
        ASSERT_TRUE(cluster.Run(began_us + 60'000'000)) << cluster.Stalls();
      } else {
        cluster.Run(began_us + 100);
      }
      const int64_t issued_us = cluster.now_us();
      const uint32_t small = cluster.Execute({1}, /*spread_us=*/50);
      ASSERT_TRUE(cluster.Run(issued_us + 60'000'000)) << cluster.Stalls();
      if (round < 2) continue;
      for (uint32_t rank = 0; rank < options.world_size; ++rank) {
        EXPECT_LT(cluster.done_us(small, rank), cluster.done_us(large, rank));
      }
    }
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
    for (int site = 0; site < 4; ++site) cluster.AddSite(site == 0 ? DType::kFloat32 : DType::kInt32, {400, 100}, 1);
    uint64_t guesses = 0;
    for (int execution = 0; execution < 12; ++execution) {
      cluster.Execute({0, 1, 2, 3}, /*spread_us=*/3000);
      ASSERT_TRUE(cluster.Run(cluster.now_us() + 60'000'000)) << cluster.Stalls();
      guesses = cluster.rank(1).stats().order_rollbacks;
    }
    EXPECT_GE(guesses, 8u);
    EXPECT_GT(cluster.core(shard_count - 1).Count(Verdict::kStale), 0u);
  }
}

// A host whose program differs: nobody gets a sum, and everybody can say where the others are.
TEST(AllReduceCluster, differentProgramsStallByName) {
  Cluster cluster(1, {.world_size = 2, .faults = {}});
  float a[10] = {}, b[10] = {};
  int finished = 0;
  const auto start = [&](uint32_t rank, uint64_t site, const char* name, float* data) {
    auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = name, .dtype = DType::kFloat32, .leaf_elements = {10}});
    cluster.Start(rank, {.key = {.site = site},
                         .spec = shape,
                         .inputs = {data},
                         .outputs = {data},
                         .done = [&](const Failure* failure) {
                           EXPECT_EQ(failure->kind, "DeadlineExceededError");
                           ++finished;
                         }});
  };
  start(0, 1, "a.py:1", a);
  start(1, 2, "b.py:2", b);
  EXPECT_FALSE(cluster.Run(1'000'000));
  const std::optional<Stall> leader = cluster.stall(0);
  EXPECT_EQ(leader->site_name, "a.py:1");
  EXPECT_FALSE(leader->waits_for_order);
  EXPECT_EQ(leader->slot, Cluster::kSlotFirst);
  EXPECT_EQ(cluster.core().VersionOf(leader->slot, leader->version).bitmap, 1u);  // rank 1 is missing
  const std::optional<Stall> follower = cluster.stall(1);
  EXPECT_EQ(follower->site_name, "b.py:2");
  EXPECT_TRUE(follower->waits_for_order);
  EXPECT_EQ(follower->job_is_at, "a.py:1");
  for (uint32_t rank : {0u, 1u}) cluster.Fail(rank, {"DeadlineExceededError", "60 s"});
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
    Cluster cluster(1, {.world_size = 2, .slot_count = 64, .lanes_per_chunk = 360, .faults = {}});
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
      cluster.Start(rank, std::move(sum));
    }
    EXPECT_FALSE(cluster.Run(1'000'000));
    EXPECT_EQ(written, 23'040u);  // the segments that are there as a whole
    const std::optional<Stall> stall = cluster.stall(late);
    EXPECT_TRUE(stall->waits_for_gpu);
    EXPECT_FALSE(stall->waits_for_order);
    const std::optional<Stall> other = cluster.stall(1 - late);
    EXPECT_FALSE(other->waits_for_gpu);
    EXPECT_FALSE(other->waits_for_order);        // it has placed the next segment, or takes for granted that rank 0 has
    cluster.OnReady(late, {.site = 2}, 50'000);  // no such sum
    cluster.OnReady(late, key, 46'080);
    EXPECT_FALSE(cluster.Run(2'000'000));
    EXPECT_EQ(written, 46'080u);
    EXPECT_EQ(done, 0);
    cluster.OnReady(late, key, 50'000);
    EXPECT_TRUE(cluster.Run(3'000'000));
    EXPECT_EQ(done, 2);
    EXPECT_EQ(data[0], std::vector<float>(50'000, 3));
    EXPECT_EQ(data[1], data[0]);
    cluster.OnReady(late, key, 50'000);  // late itself
    EXPECT_TRUE(cluster.rank(late).idle());
  }
}

}  // namespace
}  // namespace passing
