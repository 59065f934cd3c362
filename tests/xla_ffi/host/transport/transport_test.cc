#include "host/transport/transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/host/support/loopback_cluster.h"
#include "../tests/xla_ffi/net/loopback_group.h"
#include "switch/udp_switch.h"

namespace passing {
namespace {

TEST(Transport, group_resultsComeByMulticast) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  const Address group = LoopbackGroup();
  for (const uint32_t shards : {1u, 3u}) {
    LoopbackCluster cluster(3, 5, 30, shards, {group, group, group});
    for (uint32_t i = 0; i < 3; ++i) SumRamps(cluster, 3, i, 300'000);
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const UdpSwitchStats stats = cluster.udp_switch(shard).stats();
      EXPECT_GT(stats.results_multicast, 100u);
      EXPECT_EQ(stats.results_multicast, stats.verdicts[static_cast<size_t>(Verdict::kComplete)]);
    }
    EXPECT_EQ(cluster.groups_lost(), 0);
  }
}

TEST(Transport, group_thatNoLongerReachesARank_isGivenUp) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  const Address group = LoopbackGroup();
  LoopbackCluster cluster(3, 5, 30, 1, {group, LoopbackGroup(), group});  // rank 1 hears another port
  SumRamps(cluster, 3, 0, 300'000);
  // The others as well, as nothing comes by multicast from then on.
  ASSERT_TRUE(Eventually([&] { return cluster.groups_lost() >= 1; }));
  const uint64_t before = cluster.udp_switch().stats().results_multicast;
  SumRamps(cluster, 3, 1, 300'000);
  EXPECT_EQ(cluster.udp_switch().stats().results_multicast, before);
}

// Pieces that come from a GPU wake the transport of either rank; results of what is there come before.
TEST(Transport, ready_wakesTheTransport) {
  constexpr size_t kCount = 100'000, kFirst = 30'000;
  for (const uint32_t rank : {0u, 1u}) {
    SCOPED_TRACE(rank);
    LoopbackCluster cluster(2);
    FloatCall other(7, 0, DType::kFloat32, std::vector<float>(kCount, 1));
    other.Start(cluster.host(1 - rank));
    std::vector<float> values(kCount);
    std::fill_n(values.begin(), kFirst, 2.0f);
    std::atomic<uint64_t> written = 0;
    std::atomic<bool> done = false;
    const SumKey key{.site = 7};
    StripedTransport& host = cluster.host(rank);
    host.Start({.key = key,
                .spec = std::make_shared<SumSpec>(
                    SumSpec{.site_name = "site 7", .dtype = DType::kFloat32, .leaf_elements = {kCount}}),
                .inputs = {values.data()},
                .outputs = {values.data()},
                .done = [&](const Failure* failure) { done = failure == nullptr; },
                .pieces = Pieces{.ready_elements = kFirst, .written = [&](uint64_t elements) { written = elements; }}});
    ASSERT_TRUE(Eventually([&] { return written == 23'040; }));  // a segment
    EXPECT_EQ(values[23'039], 3);
    EXPECT_FALSE(done);
    std::fill(values.begin() + kFirst, values.end(), 2.0f);
    host.Ready(key, kCount);
    ASSERT_TRUE(Eventually([&] { return done.load(); }));
    EXPECT_EQ(values, std::vector<float>(kCount, 3));
    ASSERT_TRUE(other.Wait());
    EXPECT_EQ(other.values(), values);
    host.Ready(key, kCount);  // of a sum that is over
    SumRamps(cluster, 2, 1, 1000);
  }
}

TEST(Transport, start_overSeveralSwitches) {
  constexpr size_t kCount = 300'000;
  LoopbackCluster cluster(2, 5, 30, /*shard_count=*/3);
  FloatCall one(7, 0, DType::kFloat32, Ramp(kCount, 1));
  FloatCall two(7, 0, DType::kFloat32, Ramp(kCount, 2));
  one.Start(cluster.host(0));
  two.Start(cluster.host(1));
  ASSERT_TRUE(one.Wait());
  ASSERT_TRUE(two.Wait());
  EXPECT_EQ(one.values(), Ramp(kCount, 3));
  EXPECT_EQ(two.values(), Ramp(kCount, 3));
  for (size_t shard : {0u, 1u, 2u}) {
    // A third of the 834 data chunks and the 14 of exponents.
    const auto& verdicts = cluster.udp_switch(shard).stats().verdicts;
    EXPECT_NEAR(static_cast<double>(verdicts[static_cast<size_t>(Verdict::kComplete)]), 848 / 3, 20);
  }
}

TEST(Transport, start_manySumsInAnyOrderOfIssue) {
  constexpr uint32_t kWorldSize = 3;
  constexpr uint32_t kSites = 40;
  LoopbackCluster cluster(kWorldSize);
  for (uint32_t execution = 0; execution < 5; ++execution) {
    std::vector<std::vector<std::unique_ptr<IntCall>>> calls(kWorldSize);
    std::vector<std::thread> programs;
    for (uint32_t rank = 0; rank < kWorldSize; ++rank) {
      for (uint32_t site = 0; site < kSites; ++site) {
        const std::vector<int32_t> values(1 + site * 97, static_cast<int32_t>((rank + 1) * 1000 + site));
        calls[rank].push_back(std::make_unique<IntCall>(100 + site, execution, DType::kInt32, values));
      }
      programs.emplace_back([&, rank] {
        std::vector<uint32_t> order(kSites);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937(execution * 10 + rank));
        for (const uint32_t site : order) calls[rank][site]->Start(cluster.host(rank));
      });
    }
    for (std::thread& program : programs) program.join();
    for (uint32_t rank = 0; rank < kWorldSize; ++rank) {
      for (uint32_t site = 0; site < kSites; ++site) {
        ASSERT_TRUE(calls[rank][site]->Wait()) << "rank " << rank << ", site " << site;
        ASSERT_FALSE(calls[rank][site]->failure().has_value()) << calls[rank][site]->failure()->message;
        const std::vector<int32_t> expected(1 + site * 97, static_cast<int32_t>(6000 + 3 * site));
        ASSERT_EQ(calls[rank][site]->values(), expected) << "rank " << rank << ", site " << site;
      }
    }
  }
}

}  // namespace
}  // namespace passing
