#include <gtest/gtest.h>

#include <array>
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
  const uint32_t sites = 1 + static_cast<uint32_t>(random() % 6);
  for (uint32_t site = 0; site < sites; ++site) {
    std::vector<uint64_t> leaves;
    for (uint64_t leaf = 0; leaf <= random() % 4; ++leaf) leaves.push_back(1 + random() % pick(3u, 300u, 4000u));
    const DType dtype = pick(DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt32,
                             DType::kInt64, DType::kUint8);
    const bool maxima = dtype == DType::kInt32 && (seed + site) % 3 != 0;
    const WireDtype narrow = std::array{WireDtype::kInt16, WireDtype::kInt8, WireDtype::kInt4}[(seed / 2) % 3];
    const bool is_narrow = MayBeNarrow(dtype) && (seed + site) % 2 == 0 && options.world_size <= MaxRanksOf(narrow);
    cluster.AddSite(dtype, leaves, pick(1u, 2u), maxima ? Op::kMax : Op::kSum, is_narrow ? narrow : WireDtype::kFull);
  }
  // Two programs that share some sites; the first one is run again and again, the second now and then.
  std::vector<std::vector<uint32_t>> programs(2);
  for (auto& program : programs) {
    for (uint64_t i = 0; i <= random() % 8; ++i) program.push_back(static_cast<uint32_t>(random() % sites));
  }
  for (int execution = 0; execution < 4; ++execution) {
    cluster.Execute(programs[random() % 4 == 0], pick(1, 200, 3000));
    if (random() % 2 == 0) cluster.Run(cluster.now_us() + pick(100, 5000));
  }
  ASSERT_TRUE(cluster.Run(cluster.now_us() + 600'000'000)) << cluster.Stalls();
  EXPECT_EQ(cluster.Count(Verdict::kTooFar), 0u);
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
    cluster.AddSite(DType::kFloat32, {3000, 1}, 1);
    cluster.AddSite(DType::kBFloat16, {2001}, 1);
    cluster.AddSite(DType::kInt64, {100}, 1);
    cluster.AddSite(DType::kInt32, {500}, 1, Op::kMax);
    cluster.Execute({0, 1, 2, 3}, 1000);
    ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
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
  cluster.AddSite(DType::kFloat32, {1000}, 1);
  cluster.AddSite(DType::kBFloat16, {500}, 1);
  cluster.AddSite(DType::kUint64, {100}, 1);
  cluster.Execute({0, 1, 2}, 1000);
  ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
}

TEST(AllReduceCluster, aRepeatedProgramNeedsNoOrderMessages) {
  ClusterOptions options{.world_size = 3, .faults = {}, .plain = true};
  Cluster cluster(1, options);
  for (int site = 0; site < 5; ++site) cluster.AddSite(DType::kFloat32, {30'000}, 1);
  uint64_t messages = 0;
  uint64_t rollbacks = 0;  // the last segment of a new sum is shorter than the others
  for (int execution = 0; execution < 6; ++execution) {
    cluster.Execute({0, 1, 2, 3, 4}, /*spread_us=*/1);
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
}

TEST(AllReduceCluster, nothingIsSentTwiceWithoutLoss) {
  ClusterOptions options{.world_size = 2, .slot_count = 64, .lanes_per_chunk = 360, .faults = {}, .plain = true};
  Cluster cluster(1, options);
  cluster.AddSite(DType::kFloat32, {100'000}, 1);
  cluster.Execute({0}, 1);
  ASSERT_TRUE(cluster.Run(600'000'000));
  // 5 segments: an exponent chunk each, and 100,000 / 360 = 278 data chunks.
  EXPECT_EQ(cluster.rank(0).stats().packets_sent, 278u + 5u);
  EXPECT_EQ(cluster.rank(0).stats().packets_received, 278u + 5u);
  EXPECT_EQ(cluster.rank(0).stats().tensor_bytes, 400'000u);
}

}  // namespace
}  // namespace passing
