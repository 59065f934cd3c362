#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/support/cluster.h"
#include "../tests/xla_ffi/net/fake_network.h"
#include "host/all_reduce.h"

namespace passing {
namespace {

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

// The bits are those of the reference, as with shorter packets: of all kinds of sums, checked, confidential or neither,
// over a tree and over shards, while packets get lost.
TEST(AllReduceCluster, longPackets) {
  const SumCheck::Key check{1};
  const LaneMasks::Key masks{2};
  for (const auto& [check_key, mask_key] : {std::pair<std::optional<SumCheck::Key>, std::optional<LaneMasks::Key>>{},
                                            {check, {}},
                                            {{}, masks},
                                            {check, masks}}) {
    for (const uint32_t shard_count : {1u, 3u}) {
      ClusterOptions options{.world_size = 4,
                             .shard_count = shard_count,
                             .trees = {Tree::Levels(4, {2})},
                             .slot_count = 16,
                             .lanes_per_chunk = wire::kMaxLanes,
                             .faults = {.loss = 0.01, .duplicate = 0.01, .reorder = 0.1, .reorder_us = 1000},
                             .check_key = check_key,
                             .mask_key = mask_key};
      Cluster cluster(1, options);
      cluster.AddSite(DType::kFloat32, {100'000, 1, 2177}, 1);
      cluster.AddSite(DType::kBFloat16, {50'001}, 1);
      cluster.AddSite(DType::kFloat64, {2000}, 1);
      cluster.AddSite(DType::kFloat32, {1440}, 1);  // is precise, and guesses
      cluster.AddSite(DType::kInt64, {30'000}, 1);
      if (!mask_key) cluster.AddSite(DType::kInt32, {5000}, 1, Op::kMax);
      for (int execution = 0; execution < 2; ++execution) {
        cluster.Execute({0, 1, 2, 3, 4}, 1000);
        ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
      }
      const AllReduceStats stats = cluster.rank(0).stats();
      EXPECT_LT(stats.packets_sent - stats.packets_resent, stats.bytes_sent / 3000);
    }
  }
}

// Each rank gives or needs one row: of a few elements, of chunks that rows share, and of several segments.
TEST(AllReduceCluster, rowsOfRanks) {
  for (const uint32_t world_size : {1u, 2u, 5u}) {
    for (const bool bare : {true, false}) {
      for (const bool tree : {false, true}) {
        SCOPED_TRACE(std::to_string(world_size) + (bare ? " bare" : "") + (tree ? " tree" : ""));
        ClusterOptions options{
            .world_size = world_size,
            .shard_count = tree ? 1u : 2u,
            .trees = {tree ? Tree::Levels(world_size, {world_size > 2 ? 2u : 1u}) : Tree::OneSwitch(world_size)},
            .faults = {.loss = 0.02, .duplicate = 0.05, .reorder = 0.2, .reorder_us = 500},
            .bare = bare};
        Cluster cluster(world_size, options);
        std::vector<uint32_t> sites;
        for (const Moves moves : {Moves::kGather, Moves::kScatter}) {
          for (const DType dtype : {DType::kFloat32, DType::kInt32, DType::kBFloat16, DType::kInt64}) {
            for (const uint64_t row : {3u, 500u, 9000u}) {
              sites.push_back(cluster.AddSite(dtype, {row * world_size, world_size}, 1 + row % 2, Op::kSum,
                                              WireDtype::kFull, moves));
            }
          }
        }
        sites.push_back(
            cluster.AddSite(DType::kFloat32, {2000 * world_size}, 1, Op::kSum, WireDtype::kInt8, Moves::kScatter));
        cluster.Execute(sites, 1000);
        ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
      }
    }
  }
}

// A rank sends its own row, or all others', and receives the others', or its own; beside these go headers, and the
// exponents of floats.
TEST(AllReduceCluster, rowsTakeTheirBytesAlone) {
  constexpr uint64_t kRow = 64 * 360, kRanks = 4;
  for (const Moves moves : {Moves::kGather, Moves::kScatter, Moves::kAll}) {
    ClusterOptions options{
        .world_size = kRanks, .slot_count = 512, .lanes_per_chunk = 360, .faults = {}, .plain = true};
    Cluster cluster(1, options);
    cluster.Execute({cluster.AddSite(DType::kInt32, {kRow * kRanks}, 1, Op::kSum, WireDtype::kFull, moves)}, 1);
    ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
    const uint64_t own = 4 * kRow, others = own * (kRanks - 1);
    const uint64_t headers = wire::kHeaderBytes * kRow / 360 * kRanks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const AllReduceStats stats = cluster.rank(rank).stats();
      if (stats.packets_resent > 0) continue;
      EXPECT_EQ(stats.bytes_sent, headers + (moves == Moves::kAll      ? own + others
                                             : moves == Moves::kGather ? own
                                                                       : others));
      EXPECT_EQ(stats.bytes_received, headers + (moves == Moves::kAll      ? own + others
                                                 : moves == Moves::kGather ? others
                                                                           : own));
    }
  }
}

// On some ranks an early sum comes only when those before it are done, and the slots are few.
TEST(AllReduceCluster, earlySumsDontTakeTheSlotsOfThoseBeforeThem) {
  for (const uint32_t world_size : {2u, 3u}) {
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      ClusterOptions options{.world_size = world_size, .slot_count = 64, .faults = {}, .plain = true};
      Cluster cluster(seed, options);
      std::vector<uint32_t> sites;
      for (const Moves moves : {Moves::kScatter, Moves::kGather, Moves::kGather, Moves::kScatter}) {
        sites.push_back(
            cluster.AddSite(DType::kInt32, {90'000 * world_size}, 1, Op::kSum, WireDtype::kFull, moves, true));
      }
      for (int execution = 0; execution < 3; ++execution) {
        cluster.Execute(sites, 1000);
        ASSERT_TRUE(cluster.Run(600'000'000)) << seed << cluster.Stalls();
      }
    }
  }
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
  EXPECT_LE(cluster.rank(0).stats().packets_resent, 6u);  // a few, while the order is on its way
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

// Rank 0 of a job whose packets come nowhere.
struct LoneRank {
  void Start(uint64_t site, DType dtype, uint64_t elements) {
    auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = dtype, .leaf_elements = {elements}});
    all_reduce.Start({.key = {.site = site},
                      .spec = shape,
                      .inputs = {data.data()},
                      .outputs = {data.data()},
                      .done = [](const Failure*) {}},
                     0);
  }

  std::vector<std::vector<uint8_t>> sent;
  FakeDriver driver{[this](std::vector<uint8_t> packet) { sent.push_back(std::move(packet)); }};
  const JobConfig job{.world_size = 2, .shards = {{.job = 3, .epoch = 7}}, .slots_per_shard = 1024};
  AllReduce all_reduce{job, {&driver}, [](std::string) {}};
  std::vector<int32_t> data = std::vector<int32_t>(30'000, 1);  // of either dtype, in two segments
};

// Integers that have their places behind floats wait with them for their exponents: what ranks send in the order of
// positions comes back in it, unless it is lost.
TEST(AllReduceCluster, dataIsSentInTheOrderOfPositions) {
  LoneRank rank;
  auto& [sent, driver, job, all_reduce, data] = rank;
  for (const DType dtype : {DType::kFloat32, DType::kInt32}) {
    rank.Start(static_cast<uint64_t>(dtype), dtype, data.size());
  }
  all_reduce.OnTimer(0);
  ASSERT_EQ(sent.size(), 2u);  // the exponents
  for (std::vector<uint8_t>& packet : std::exchange(sent, {})) {
    wire::Header header;
    ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
    header.type = wire::PacketType::kResult;
    header.worker = wire::kEveryWorker;
    wire::Encode(header, packet.data());
    all_reduce.OnPacket(0, packet, 1);
  }
  all_reduce.OnTimer(1);
  std::vector<uint32_t> sequences;
  for (const std::vector<uint8_t>& packet : sent) {
    wire::Header header;
    ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
    sequences.push_back(header.sequence);
  }
  EXPECT_GT(sent.size(), data.size() / 360 + 1);  // of the integers, too
  EXPECT_TRUE(std::is_sorted(sequences.begin(), sequences.end()));
}

TEST(AllReduceCluster, smallIntegersGoAheadOfDataThatWaits) {
  LoneRank rank;
  rank.Start(1, DType::kFloat32, rank.data.size());
  rank.all_reduce.OnTimer(0);
  EXPECT_EQ(rank.sent.size(), 2u);  // the exponents of its segments
  rank.Start(2, DType::kInt32, 300);
  rank.all_reduce.OnTimer(1);
  EXPECT_EQ(rank.sent.size(), 3u);
}

}  // namespace
}  // namespace passing
