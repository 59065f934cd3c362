#include "host/all_reduce.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>

#include "../tests/xla_ffi/host/support/cluster.h"
#include "../tests/xla_ffi/host/support/workload.h"
#include "host/order/order.h"
#include "host/sums/sum_plan.h"
#include "wire/lanes.h"

namespace passing {
namespace {

// A random cluster, random programs, random faults: one seed replays all of it. `tree_levels` above 1: each shard's
// switches stand in a random tree of their own.
void RunSeed(uint64_t seed, uint32_t tree_levels = 1) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  ClusterOptions options;
  options.world_size = pick(1u, 2u, 2u, 3u, 4u, 8u);
  options.shard_count = pick(1u, 1u, 2u, 3u, 4u, 16u);
  options.slot_count = pick(4u, 8u, 16u, 64u);
  options.lanes_per_chunk = pick(64u, 256u, 360u, 63u);
  options.order_delay_us = pick(0, 100, 2000);
  options.faults = {.loss = pick(0.0, 0.01, 0.2),
                    .duplicate = pick(0.0, 0.05),
                    .reorder = pick(0.0, 0.1, 0.5),
                    .delay_us = pick(5, 20, 200),
                    .reorder_us = pick(10, 1000, 50'000)};  // up to five first RTOs of 10 ms
  // Each shard may be a switch that takes nothing but whole chunks, some of them larger than the others' chunks.
  for (uint32_t shard = 0; shard < options.shard_count; ++shard) {
    const bool whole = (seed >> shard & 1) != 0;
    const auto larger = static_cast<uint32_t>(seed % 3);
    options.whole_lanes.push_back(whole ? std::min(options.lanes_per_chunk + larger, wire::kMaxLanes) : 0);
  }
  if (tree_levels > 1) {
    options.world_size = pick(2u, 3u, 5u, 8u, 12u);
    for (uint32_t shard = 0; shard < options.shard_count; ++shard) {
      options.trees.push_back(Tree::Random(options.world_size, tree_levels, random));
    }
  }
  // The sequence wraps on the way.
  options.first_position = pick(uint64_t{0}, uint64_t{0xFFFFFFFF} - random() % 50);
  options.tagged = pick(false, true);
  if (pick(false, true)) options.check_key = SumCheck::Key{static_cast<uint8_t>(seed)};
  Cluster cluster(seed, options);
  Workload workload(cluster, options.world_size);
  const int sites = 1 + static_cast<int>(random() % 6);
  for (int site = 0; site < sites; ++site) {
    std::vector<uint64_t> leaves;
    for (uint64_t leaf = 0; leaf <= random() % 4; ++leaf) leaves.push_back(1 + random() % pick(3u, 300u, 4000u));
    const DType dtype = pick(DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt32,
                             DType::kInt64, DType::kUint8);
    const bool maxima = dtype == DType::kInt32 && (seed + site) % 3 != 0;
    workload.AddSite(dtype, leaves, pick(1u, 2u), maxima ? Op::kMax : Op::kSum);
  }
  // Two programs that share some sites; the first one is run again and again, the second now and then.
  std::vector<std::vector<size_t>> programs(2);
  for (auto& program : programs) {
    for (uint64_t i = 0; i <= random() % 8; ++i) program.push_back(random() % workload.site_count());
  }
  for (int execution = 0; execution < 4; ++execution) {
    workload.Execute(programs[random() % 4 == 0], pick(1, 200, 3000), pick(0.0, 0.0, 0.001));
    if (random() % 2 == 0) cluster.Run(cluster.network().now_us() + pick(100, 5000));
  }
  const bool idle = cluster.Run(cluster.network().now_us() + 600'000'000);
  ASSERT_FALSE(cluster.protocol_failure()) << cluster.protocol_failure()->message;
  ASSERT_TRUE(idle) << Stalls(cluster, options.world_size);
  EXPECT_EQ(cluster.Count(Verdict::kTooFar), 0u);
  workload.Check();
}

// Runs the first seeds. By hand: PASSING_SEED names the only one, and PASSING_SEED_COUNT says how many. The simulator
// (tests/simulate.py) runs thousands.
void RunSeeds(uint64_t seed_count, uint32_t tree_levels) {
  const char* first = std::getenv("PASSING_SEED");
  const char* count = std::getenv("PASSING_SEED_COUNT");
  const uint64_t first_seed = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  if (first != nullptr) seed_count = 1;
  if (count != nullptr) seed_count = std::strtoull(count, nullptr, 10);
  for (uint64_t seed = first_seed; seed < first_seed + seed_count; ++seed) {
    RunSeed(seed, tree_levels);
    if (testing::Test::HasFatalFailure()) FAIL() << "replay with PASSING_SEED=" << seed;
  }
}

TEST(AllReduceCluster, sameBitsAsTheReferenceForEverySeed) { RunSeeds(12, 1); }

TEST(AllReduceCluster, sameBitsAsTheReferenceInTreesOfTwoLevels) { RunSeeds(4, 2); }

TEST(AllReduceCluster, sameBitsAsTheReferenceInTreesOfThreeLevels) { RunSeeds(4, 3); }

// Each host's elements come at a pace of their own, from sum to sum: as from GPUs. Nothing is read before, and hosts
// are told of results that stay.
TEST(AllReduceCluster, elementsThatComeLate) {
  uint64_t told = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... values) {
      const std::common_type_t<decltype(values)...> list[] = {values...};
      return list[random() % sizeof...(values)];
    };
    ClusterOptions options{.world_size = pick(1u, 2u, 2u, 3u),
                           .shard_count = pick(1u, 1u, 2u),
                           .slot_count = pick(16u, 64u, 256u),
                           .lanes_per_chunk = pick(64u, 360u),
                           .faults = {.loss = pick(0.0, 0.01, 0.1),
                                      .duplicate = pick(0.0, 0.05),
                                      .reorder = pick(0.0, 0.1),
                                      .delay_us = pick(5, 200),
                                      .reorder_us = pick(10, 5000)},
                           .order_delay_us = pick(0, 2000)};
    Cluster cluster(seed, options);
    Workload workload(cluster, options.world_size);
    workload.DeliverLate(seed, pick(100u, 3000u, 40'000u), pick(10, 300, 3000));
    const uint32_t devices = pick(1u, 2u);
    workload.AddSite(DType::kFloat32, {30'000, 1, 20'001}, devices);
    workload.AddSite(DType::kBFloat16, {7, 90'001, 3}, devices);
    workload.AddSite(DType::kInt32, {50'000}, devices, pick(Op::kSum, Op::kMax));
    workload.AddSite(DType::kFloat32, {100}, devices);
    for (int execution = 0; execution < 3; ++execution) {
      workload.Execute({0, 1, 2, 3}, pick(1, 500, 5000), pick(0.0, 0.0, 0.00002));
      if (random() % 2 == 0) cluster.Run(cluster.network().now_us() + pick(100, 5000));
    }
    ASSERT_TRUE(cluster.Run(cluster.network().now_us() + 600'000'000)) << Stalls(cluster, options.world_size);
    ASSERT_FALSE(cluster.protocol_failure()) << cluster.protocol_failure()->message;
    EXPECT_EQ(cluster.Count(Verdict::kTooFar), 0u);
    workload.Check();
    ASSERT_FALSE(HasFailure());
    told += workload.told();
  }
  EXPECT_GT(told, 400u);
}

// More ranks than a switch has workers.
TEST(AllReduceCluster, treesOf128Ranks) {
  std::mt19937_64 random(1);
  Tree mixed = Tree::Levels(128, {8});
  std::ranges::shuffle(mixed.switch_of, random);
  const std::pair<const char*, Tree> trees[] = {{"4 racks of 32", Tree::Levels(128, {4})},
                                                {"16 racks of 8", Tree::Levels(128, {16})},
                                                {"4 rows of 4 racks of 8", Tree::Levels(128, {4, 4})},
                                                {"8 racks, ranks in any of them", mixed}};
  for (const auto& [description, tree] : trees) {
    SCOPED_TRACE(description);
    ClusterOptions options{.world_size = 128,
                           .trees = {tree},
                           .slot_count = 16,
                           .lanes_per_chunk = 64,
                           .faults = {.loss = 0.01, .duplicate = 0.01, .reorder = 0.1, .reorder_us = 1000}};
    Cluster cluster(1, options);
    Workload workload(cluster, options.world_size);
    workload.AddSite(DType::kFloat32, {3000, 1}, 1);
    workload.AddSite(DType::kBFloat16, {2001}, 1);
    workload.AddSite(DType::kInt64, {100}, 1);
    workload.AddSite(DType::kInt32, {500}, 1, Op::kMax);
    workload.Execute({0, 1, 2, 3}, 1000, 0.0001);
    ASSERT_TRUE(cluster.Run(600'000'000)) << Stalls(cluster, options.world_size);
    workload.Check();
    EXPECT_GT(cluster.Count(Verdict::kForwardedAgain), 0u);
    EXPECT_GT(cluster.Count(Verdict::kResend), 0u);
  }
}

TEST(AllReduceCluster, theLargestWorld) {
  ClusterOptions options{.world_size = kMaxWorldSize,
                         .trees = {Tree::Levels(kMaxWorldSize, {16})},
                         .slot_count = 16,
                         .lanes_per_chunk = 360,
                         .faults = {.loss = 0.001},
                         .check_key = SumCheck::Key{1}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  workload.AddSite(DType::kFloat32, {1000}, 1);
  workload.AddSite(DType::kBFloat16, {500}, 1);
  workload.AddSite(DType::kUint64, {100}, 1);
  workload.Execute({0, 1, 2}, 1000, 0.0001);
  ASSERT_TRUE(cluster.Run(600'000'000)) << Stalls(cluster, options.world_size);
  workload.Check();
}

TEST(AllReduceCluster, aFullSwitchOf64Ranks) {
  ClusterOptions options{.world_size = 64, .slot_count = 16, .lanes_per_chunk = 64, .faults = {.loss = 0.01}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  workload.AddSite(DType::kFloat32, {5000, 1}, 1);
  workload.AddSite(DType::kInt64, {100}, 1);
  workload.Execute({0, 1}, 1000, 0.0001);
  ASSERT_TRUE(cluster.Run(600'000'000)) << Stalls(cluster, options.world_size);
  workload.Check();
}

TEST(AllReduceCluster, aRepeatedProgramNeedsNoOrderMessages) {
  ClusterOptions options{.world_size = 3, .faults = {}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  for (int site = 0; site < 5; ++site) workload.AddSite(DType::kFloat32, {30'000}, 1);
  uint64_t messages = 0;
  uint64_t rollbacks = 0;  // the last segment of a new sum is shorter than the others
  for (int execution = 0; execution < 6; ++execution) {
    workload.Execute({0, 1, 2, 3, 4}, /*spread_us=*/1);
    ASSERT_TRUE(cluster.Run(600'000'000));
    if (execution == 1) {
      messages = cluster.rank(0).stats().order_messages;
      rollbacks = cluster.rank(1).stats().order_rollbacks;
    }
  }
  EXPECT_GT(messages, 0u);
  EXPECT_EQ(cluster.rank(0).stats().order_messages, messages);
  EXPECT_EQ(cluster.rank(1).stats().order_rollbacks, rollbacks);
  EXPECT_EQ(cluster.rank(0).stats().packets_resent, 0u);
  workload.Check();
}

TEST(AllReduceCluster, nothingIsSentTwiceWithoutLoss) {
  ClusterOptions options{.world_size = 2, .slot_count = 64, .lanes_per_chunk = 360, .faults = {}};
  Cluster cluster(1, options);
  Workload workload(cluster, options.world_size);
  workload.AddSite(DType::kFloat32, {100'000}, 1);
  workload.Execute({0}, 1);
  ASSERT_TRUE(cluster.Run(600'000'000));
  // 5 segments: an exponent chunk each, and 100,000 / 360 = 278 data chunks.
  EXPECT_EQ(cluster.rank(0).stats().packets_sent, 278u + 5u);
  EXPECT_EQ(cluster.rank(0).stats().packets_received, 278u + 5u);
  EXPECT_EQ(cluster.rank(0).stats().tensor_bytes, 400'000u);
}

// Every packet has the lanes that the switch takes, those behind the chunk's are 0, and what comes back there says
// nothing.
TEST(AllReduce, wholeChunksArePaddedWithZeros) {
  std::vector<std::vector<uint8_t>> sent;
  FakeDriver driver([&](std::vector<uint8_t> packet) { sent.push_back(std::move(packet)); });
  const JobConfig job{.rank = 0,
                      .world_size = 1,
                      .shards = {{.job = 3, .epoch = 7, .whole_lanes = 10}},
                      .slots_per_shard = 16,
                      .lanes_per_chunk = 8};
  AllReduce all_reduce(job, {&driver}, [](std::string) {});
  float data[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};  // one exponent chunk, of eight and of one lane of data
  bool done = false;
  auto shape = std::make_shared<SumShape>(SumShape{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {9}});
  all_reduce.Start(
      {.key = {}, .shape = shape, .inputs = {data}, .outputs = {data}, .done = [&](const Failure*) { done = true; }},
      0);
  for (int64_t now_us = 0; !done && now_us < 10; ++now_us) {
    all_reduce.OnTimer(now_us);
    for (std::vector<uint8_t>& packet : std::exchange(sent, {})) {
      wire::Header header;
      ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
      ASSERT_EQ(header.element_count, 10u);
      for (uint32_t lane : {8u, 9u}) {
        EXPECT_EQ(wire::LoadLane(&packet[wire::kHeaderBytes], lane), 0u);
        wire::StoreLane(&packet[wire::kHeaderBytes], lane, 0xDEADBEEF);
      }
      header.type = wire::PacketType::kResult;
      header.worker = wire::kEveryWorker;
      wire::Encode(header, packet.data());
      all_reduce.OnPacket(0, packet, now_us);
    }
  }
  EXPECT_TRUE(done);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(data[i], static_cast<float>(i + 1));
  EXPECT_EQ(all_reduce.stats().packets_dropped, 0u);
}

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

// Data that was sent at guessed exponents counts if all guesses were right, and is sent again if not.
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
  EXPECT_EQ(run(1), 2u);  // equal on all hosts, so the first guess was right
  EXPECT_EQ(run(1.5), 2u);
  EXPECT_EQ(run(2), 2u);    // a host's own exponent is the least it guesses
  EXPECT_EQ(run(0.5), 3u);  // the last one was too large
  EXPECT_EQ(run(0.5), 2u);
  EXPECT_EQ(cluster.rank(1).stats().guesses_right, 4u);
  EXPECT_EQ(cluster.rank(1).stats().guesses_wrong, 1u);
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

// What somebody else sends in the switch's name doesn't hold up anybody: the switch's own results come as well.
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
    auto shape =
        std::make_shared<SumShape>(SumShape{.site_name = name, .dtype = DType::kFloat32, .leaf_elements = {10}});
    cluster.rank(rank).Start({.key = {.site = site},
                              .shape = shape,
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
    const auto shape = std::make_shared<SumShape>(
        SumShape{.site_name = "a.py:1", .dtype = DType::kFloat32, .leaf_elements = {data[0].size()}});
    const SumKey key{.site = 1};
    int done = 0;
    uint64_t written = 0;
    for (const uint32_t rank : {0u, 1u}) {
      Sum sum{.key = key,
              .shape = shape,
              .inputs = {data[rank].data()},
              .outputs = {data[rank].data()},
              .done = [&](const Failure* failure) { done += failure == nullptr; }};
      if (rank == late) {
        sum.ready_elements = 30'000;
        sum.written = [&](uint64_t elements) { written = elements; };
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

// Foreign and foul packets change nothing but a counter.
TEST(AllReduce, OnPacket_malformedForeignPastFuture) {
  std::vector<std::vector<uint8_t>> sent;
  FakeDriver driver([&](std::vector<uint8_t> packet) { sent.push_back(std::move(packet)); });
  const JobConfig job{
      .rank = 0, .world_size = 1, .shards = {{.job = 3, .epoch = 7}, {.job = 3, .epoch = 7}}, .slots_per_shard = 16};
  AllReduce all_reduce(job, {&driver, &driver}, [](std::string) {});
  int32_t data[4] = {1, -2, 3, 4};
  bool done = false;
  auto shape = std::make_shared<SumShape>(SumShape{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {4}});
  all_reduce.Start(
      {.key = {}, .shape = shape, .inputs = {data}, .outputs = {data}, .done = [&](const Failure*) { done = true; }},
      0);
  all_reduce.OnTimer(0);
  ASSERT_EQ(sent.size(), 1u);
  std::vector<uint8_t> result = sent[0];
  wire::Header good;
  ASSERT_EQ(wire::Decode(result, good), wire::DecodeError::kNone);
  good.type = wire::PacketType::kResult;
  good.worker = wire::kEveryWorker;

  uint64_t dropped = 0;
  const auto expect_dropped = [&](const wire::Header& header, const char* description) {
    std::vector<uint8_t> packet = result;
    packet.resize(wire::kHeaderBytes + 4 * header.element_count);
    wire::Encode(header, packet.data());
    all_reduce.OnPacket(0, packet, 10);
    EXPECT_EQ(all_reduce.stats().packets_dropped, ++dropped) << description;
    EXPECT_FALSE(done) << description;
  };
  const auto altered = [&](auto&& change) {
    wire::Header header = good;
    change(header);
    return header;
  };
  expect_dropped(altered([](auto& h) { h.type = wire::PacketType::kContribution; }), "a contribution");
  expect_dropped(altered([](auto& h) { h.job = 4; }), "foreign job");
  expect_dropped(altered([](auto& h) { h.epoch = 6; }), "past epoch");
  expect_dropped(altered([](auto& h) { h.worker = 1; }), "another worker's result");
  expect_dropped(altered([](auto& h) { h.slot = 1; }), "wrong slot");
  expect_dropped(altered([](auto& h) { h.version = 1; }), "wrong version");
  expect_dropped(altered([](auto& h) { h.sequence = 0xFFFFFFFF; }), "past sequence");
  expect_dropped(altered([](auto& h) { h.sequence = 1; }), "future sequence");
  expect_dropped(altered([](auto& h) { h.element_count = 3; }), "fewer elements");
  expect_dropped(altered([](auto& h) { h.lane_format = wire::LaneFormat::kMaxInt32; }), "another lane format");
  expect_dropped(altered([](auto& h) { h.flags = wire::kFlagNaN; }), "NaN among integers");
  all_reduce.OnPacket(0, {result.data(), 7}, 10);
  EXPECT_EQ(all_reduce.stats().packets_dropped, ++dropped);

  wire::Encode(good, result.data());
  all_reduce.OnPacket(1, result, 10);  // another shard's, where the job happens to have the same numbers
  EXPECT_EQ(all_reduce.stats().packets_dropped, ++dropped);
  EXPECT_FALSE(done);
  all_reduce.OnPacket(0, result, 20);
  EXPECT_TRUE(done);
  EXPECT_EQ(data[1], -2);
  all_reduce.OnPacket(0, result, 30);  // duplicate
  EXPECT_EQ(all_reduce.stats().packets_dropped, ++dropped);
}

// One rank of one, whose switch answers with what `answer` makes of its packets. Returns the sum's elements.
template <typename T, typename Answer>
std::vector<T> SumWithAnswers(AllReduce& all_reduce, std::vector<std::vector<uint8_t>>& sent, int64_t& now_us,
                              DType dtype, uint32_t execution, std::vector<T> data, Answer&& answer) {
  bool done = false;
  auto shape = std::make_shared<SumShape>(SumShape{.site_name = "x", .dtype = dtype, .leaf_elements = {data.size()}});
  all_reduce.Start({.key = {.site = static_cast<uint64_t>(dtype) * 10'000 + data.size(), .execution = execution},
                    .shape = shape,
                    .inputs = {data.data()},
                    .outputs = {data.data()},
                    .done = [&](const Failure* failure) { done = failure == nullptr; }},
                   now_us);
  for (int i = 0; !done && i < 100; ++i) {
    now_us += 600;  // rank 0 doesn't wait for another sum that the history predicts
    all_reduce.OnTimer(now_us);
    for (std::vector<uint8_t>& packet : std::exchange(sent, {})) {
      wire::Header header;
      EXPECT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
      header.type = wire::PacketType::kResult;
      header.worker = wire::kEveryWorker;
      answer(header, packet);
      wire::Encode(header, packet.data());
      all_reduce.OnPacket(0, packet, now_us);
    }
  }
  EXPECT_TRUE(done);
  return data;
}

// Whatever the lanes of exponents and data say, the arithmetic on them stays defined (the sanitizers look), the sum is
// over, and the next one is right, though the exponents that it guesses from are those of the packets.
TEST(AllReduce, OnPacket_lanesThatNoHostSends) {
  std::vector<std::vector<uint8_t>> sent;
  FakeDriver driver([&](std::vector<uint8_t> packet) { sent.push_back(std::move(packet)); });
  const JobConfig job{
      .rank = 0, .world_size = 1, .shards = {{.job = 3, .epoch = 7}}, .slots_per_shard = 64, .lanes_per_chunk = 64};
  AllReduce all_reduce(job, {&driver}, [](std::string) {});
  std::mt19937_64 random(1);
  int64_t now_us = 0;
  const auto foul = [&](const wire::Header& header, std::vector<uint8_t>& packet, std::optional<uint32_t> lane) {
    constexpr uint32_t kLanes[] = {0x80000000, 0x80000001, 0x7FFFFFFF, 0xFFFFFFFF, 0, 1, 0xFFF00000, 0x00100000};
    uint8_t* lanes = &packet[wire::kHeaderBytes];
    for (uint32_t i = 0; i < header.element_count; ++i) {
      auto fouled = static_cast<int32_t>(lane.value_or(kLanes[random() % std::size(kLanes)]));
      // A maximum below this host's own exponent is dropped.
      const auto own = static_cast<int32_t>(wire::LoadLane(lanes, i));
      if (header.lane_format == wire::LaneFormat::kMaxInt32) fouled = std::max(fouled, own);
      wire::StoreLane(lanes, i, static_cast<uint32_t>(fouled));
    }
  };
  const auto run = [&]<typename T>(DType dtype, T one) {
    for (const size_t elements : {1u, 40u, 3000u}) {  // the first two guess
      SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + ", " + std::to_string(elements));
      uint32_t execution = 0;
      const std::vector<T> ones(elements, one);
      for (const std::optional<uint32_t> lane : {std::optional<uint32_t>(0x80000000), {0x7FFFFFFF}, {0}, {}, {}, {}}) {
        bool flagged = false;  // one chunk, so that a second pass follows
        const auto answer = [&](wire::Header& header, std::vector<uint8_t>& packet) {
          if (IsFloat(dtype) && !lane && header.lane_format == wire::LaneFormat::kSumInt32) {
            header.flags = std::exchange(flagged, true) ? 0 : wire::kFlagNaN;
          }
          foul(header, packet, lane);
        };
        SumWithAnswers(all_reduce, sent, now_us, dtype, execution++, ones, answer);
        const auto right = SumWithAnswers(all_reduce, sent, now_us, dtype, execution++, ones,
                                          [](const wire::Header&, const std::vector<uint8_t>&) {});
        EXPECT_EQ(right, ones);
      }
    }
  };
  run(DType::kFloat32, 1.0f);
  run(DType::kFloat64, 1.0);
  run(DType::kFloat16, uint16_t{0x3C00});
  run(DType::kBFloat16, uint16_t{0x3F80});
  run(DType::kInt32, int32_t{-5});
  run(DType::kInt64, int64_t{-5});
}

TEST(AllReduce, OnOrderMessage_nonsense) {
  FakeDriver driver([](std::vector<uint8_t>) {});
  const JobConfig job{
      .rank = 1, .world_size = 2, .shards = {{.job = 3, .epoch = 7, .worker = 1}}, .slots_per_shard = 16};
  AllReduce follower(job, {&driver}, [](std::string) {});
  const uint8_t nonsense[] = {1, 2, 3};
  const auto failure = follower.OnOrderMessage(nonsense);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "ProtocolError");
}

// A moment in which rank 0 announces thousands of segments makes messages that the control plane relays.
TEST(AllReduce, longAnnouncementsAreSplit) {
  constexpr size_t kSums = 4096;
  constexpr size_t kRelayBytesMax = 1024 * 1024;  // RELAY_BYTES_MAX in control_messages.py: with a byte before it
  size_t sent[2] = {};
  FakeDriver drivers[2] = {FakeDriver([&](std::vector<uint8_t>) { ++sent[0]; }),
                           FakeDriver([&](std::vector<uint8_t>) { ++sent[1]; })};
  std::vector<std::string> messages;
  const auto job = [](uint16_t rank) {
    return JobConfig{
        .rank = rank, .world_size = 2, .shards = {{.job = 3, .epoch = 7, .worker = rank}}, .slots_per_shard = 32'768};
  };
  AllReduce leader(job(0), {&drivers[0]}, [&](std::string message) { messages.push_back(std::move(message)); });
  AllReduce follower(job(1), {&drivers[1]}, [](std::string) {});
  int32_t data[1] = {};
  for (uint64_t site = 1; site <= kSums; ++site) {
    auto shape = std::make_shared<SumShape>(
        SumShape{.site_name = std::string(400, 'x'), .dtype = DType::kInt32, .leaf_elements = {1}});
    for (AllReduce* rank : {&leader, &follower}) {
      rank->Start({.key = {.site = site}, .shape = shape, .inputs = {data}, .outputs = {data}, .done = [](auto) {}}, 0);
    }
  }
  leader.OnTimer(0);
  EXPECT_EQ(sent[0], kSums);
  size_t bytes = 0;
  for (const std::string& message : messages) {
    EXPECT_LT(message.size(), kRelayBytesMax);
    bytes += message.size();
    EXPECT_FALSE(follower.OnOrderMessage({reinterpret_cast<const uint8_t*>(message.data()), message.size()}));
  }
  EXPECT_GT(bytes, kRelayBytesMax);
  EXPECT_EQ(leader.stats().order_messages, messages.size());
  follower.OnTimer(0);
  EXPECT_EQ(sent[1], kSums);
}

// A follower of a rank 0 that may say anything.
class FoulOrder : public testing::Test {
 protected:
  void Start(uint64_t site, uint32_t execution) {
    auto shape = std::make_shared<SumShape>(SumShape{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {4}});
    follower_.Start({.key = {.site = site, .execution = execution},
                     .shape = shape,
                     .inputs = {data_},
                     .outputs = {data_},
                     .done = [this](const Failure* failure) { failure == nullptr ? ++succeeded_ : ++failed_; }},
                    0);
  }
  std::string Announce(uint64_t site, std::initializer_list<uint32_t> executions) {
    std::string message;
    for (const uint32_t execution : executions) {
      leader_.Append({.site = site, .execution = execution}, 1, 1, "x", message);
    }
    return message;
  }
  std::optional<Failure> Give(const std::string& message) {
    auto failure = follower_.OnOrderMessage({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
    if (!failure) return failure;
    RunTimers();  // to no effect
    EXPECT_EQ(failed_, 0);
    follower_.Fail(*failure);
    EXPECT_TRUE(follower_.idle());
    return failure;
  }
  void RunTimers() {
    for (int64_t now_us : {0, 100'000, 200'000}) follower_.OnTimer(now_us);
  }
  void AnswerFirst() {
    ASSERT_FALSE(sent_.empty());
    wire::Header header;
    ASSERT_EQ(wire::Decode(sent_[0], header), wire::DecodeError::kNone);
    header.type = wire::PacketType::kResult;
    header.worker = wire::kEveryWorker;
    wire::Encode(header, sent_[0].data());
    follower_.OnPacket(0, sent_[0], 1);
  }

  int32_t data_[4] = {};
  int succeeded_ = 0;
  int failed_ = 0;
  std::vector<std::vector<uint8_t>> sent_;
  FakeDriver driver_{[this](std::vector<uint8_t> packet) { sent_.push_back(std::move(packet)); }};
  AllReduce follower_{
      {.rank = 1, .world_size = 2, .shards = {{.job = 3, .epoch = 7, .worker = 1}}, .slots_per_shard = 16},
      {&driver_},
      [](std::string) {}};
  Order leader_{16};
};

TEST_F(FoulOrder, rollsBackAndThenMakesNoSense) {
  for (uint32_t execution = 0; execution < 4; ++execution) Start(1, execution);
  ASSERT_FALSE(Give(Announce(1, {0, 1})));
  RunTimers();  // speculates
  std::string message = Announce(2, {0});
  message[15] ^= 1;  // its position
  EXPECT_TRUE(Give(message));
  EXPECT_EQ(failed_, 4);
}

TEST_F(FoulOrder, voidsWhatHasAResult) {
  for (uint32_t execution = 0; execution < 4; ++execution) Start(1, execution);
  ASSERT_FALSE(Give(Announce(1, {0, 1})));
  Start(2, 0);
  RunTimers();
  std::swap(sent_[0], sent_[3]);  // the last guess
  AnswerFirst();
  EXPECT_TRUE(Give(Announce(2, {0})));
  EXPECT_EQ(succeeded_, 1);
  EXPECT_EQ(failed_, 4);
}

TEST_F(FoulOrder, aSegmentTwice) {
  Start(1, 0);
  ASSERT_FALSE(Give(Announce(1, {0, 0})));
  RunTimers();
  AnswerFirst();
  EXPECT_EQ(succeeded_, 1);
  RunTimers();
}

// A job that calls sums by ever new names must not fill the memory with them.
TEST_F(FoulOrder, namesOfSitesAreForgotten) {
  Start(1'000'000, 0);
  for (uint64_t site = 1; site <= 1 << 14; ++site) ASSERT_FALSE(Give(Announce(site, {0})));
  EXPECT_EQ(follower_.OldestStall()->job_is_at, "x");
  ASSERT_FALSE(Give(Announce(1 << 15, {0})));
  EXPECT_EQ(follower_.OldestStall()->job_is_at, "an unnamed sum");
}

TEST_F(FoulOrder, fromTheFarFuture) {
  ASSERT_FALSE(Give(Announce(1, {0, 1})));
  std::string message = Announce(2, {0});
  message[2] = message[10] = 1;  // index and position: guessing up to there would fill the memory
  EXPECT_TRUE(Give(message));
}

}  // namespace
}  // namespace passing
