#include "host/transport/striped_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "../tests/xla_ffi/host/support/loopback_cluster.h"

namespace passing {
namespace {

constexpr uint32_t kThreads = 2;

// Values of all magnitudes; some of a large sum aren't finite.
std::vector<float> Values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(random())), static_cast<int>(random() % 40) - 40);
  }
  if (count > 100'000) {
    values[count / 3] = std::numeric_limits<float>::quiet_NaN();
    values[count - 1] = std::numeric_limits<float>::infinity();
  }
  return values;
}

// Rank 0 has these results of one sum of each size.
std::vector<std::vector<float>> Sums(LoopbackCluster& cluster, uint32_t world_size, const std::vector<size_t>& sizes) {
  std::vector<std::vector<std::unique_ptr<FloatCall>>> calls(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      const auto seed = static_cast<uint32_t>(100 * i + rank);
      calls[i].push_back(std::make_unique<FloatCall>(i, 0, DType::kFloat32, Values(sizes[i], seed)));
      calls[i].back()->Start(cluster.host(rank));
    }
  }
  std::vector<std::vector<float>> sums;
  for (auto& of_size : calls) {
    for (auto& call : of_size) {
      EXPECT_TRUE(call->Wait());
      EXPECT_FALSE(call->failure());
      EXPECT_EQ(std::memcmp(call->values().data(), of_size[0]->values().data(), 4 * call->values().size()), 0);
    }
    sums.push_back(of_size[0]->values());
  }
  return sums;
}

uint64_t Completed(LoopbackCluster& cluster, size_t shard) {
  return cluster.udp_switch(shard).stats().verdicts[static_cast<size_t>(Verdict::kComplete)];
}

TEST(StripedTransport, bitsAreThoseOfOneThread) {
  const std::vector<size_t> sizes{1, 3, 1001, 16'384, 40'003, 100'001, 700'001};
  for (const uint32_t world_size : {2u, 3u}) {
    LoopbackCluster one(world_size), several(world_size, 5, 30, 2 * kThreads, {}, kThreads);
    const auto expected = Sums(one, world_size, sizes), sums = Sums(several, world_size, sizes);
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(std::memcmp(sums[i].data(), expected[i].data(), 4 * sizes[i]), 0) << sizes[i] << " elements";
    }
    // The large sums are cut: all shards have their part.
    for (size_t shard = 0; shard < 2 * kThreads; ++shard) EXPECT_GT(Completed(several, shard), 500u) << shard;
    const AllReduceStats counts = several.host(0).stats(), counts_of_one = one.host(0).stats();
    EXPECT_EQ(counts.sums_started, sizes.size());
    EXPECT_EQ(counts.sums_completed, sizes.size());
    EXPECT_EQ(counts.tensor_bytes, counts_of_one.tensor_bytes);
    EXPECT_GT(counts.busy_us, 0);
    uint64_t timed = 0;
    for (const SumTimes::OfSize& of_size : several.host(0).times()) {
      for (const uint64_t count : of_size.counts) timed += count;
    }
    EXPECT_EQ(timed, sizes.size());
    EXPECT_FALSE(several.host(0).Oldest());
  }
}

TEST(StripedTransport, smallSumsGoToOneThread) {
  LoopbackCluster cluster(2, 5, 30, kThreads, {}, kThreads);
  for (const uint64_t site : {4u, 4u, 5u}) {
    const uint64_t before[] = {Completed(cluster, 0), Completed(cluster, 1)};
    std::vector<std::unique_ptr<FloatCall>> calls;
    static uint32_t execution = 0;
    ++execution;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      calls.push_back(std::make_unique<FloatCall>(site, execution, DType::kFloat32, std::vector<float>(10'000, 1)));
      calls.back()->Start(cluster.host(rank), /*caller_waits=*/true);
    }
    for (auto& call : calls) ASSERT_TRUE(call->Wait());
    EXPECT_GT(Completed(cluster, site % 2), before[site % 2]);
    EXPECT_EQ(Completed(cluster, 1 - site % 2), before[1 - site % 2]);
  }
}

// The caller hears of prefixes that are complete on both threads, in growing numbers, and of none after the end.
TEST(StripedTransport, pieces) {
  constexpr size_t kCount = 200'001;
  LoopbackCluster cluster(2, 5, 30, kThreads, {}, kThreads);
  FloatCall other(7, 0, DType::kFloat32, std::vector<float>(kCount, 1));
  other.Start(cluster.host(1));
  std::vector<float> values(kCount, 2);
  std::atomic<uint64_t> written = 0;
  std::atomic<bool> grows = true, done = false;
  const SumKey key{.site = 7};
  cluster.host(0).Start({.key = key,
                         .spec = std::make_shared<SumSpec>(
                             SumSpec{.site_name = "site 7", .dtype = DType::kFloat32, .leaf_elements = {kCount}}),
                         .inputs = {values.data()},
                         .outputs = {values.data()},
                         .done = [&](const Failure* failure) { done = failure == nullptr; },
                         .pieces = Pieces{.ready_elements = 50'000, .written = [&](uint64_t elements) {
                                            for (uint64_t i = written; i < elements; ++i)
                                              grows = grows && values[i] == 3;
                                            grows = grows && !done && elements > written;
                                            written = elements;
                                          }}});
  ASSERT_TRUE(Eventually([&] { return written == 46'080; }));  // two segments, one of each thread
  EXPECT_FALSE(done);
  cluster.host(0).Ready(key, kCount);
  ASSERT_TRUE(Eventually([&] { return done.load(); }));
  EXPECT_TRUE(grows);
  EXPECT_EQ(values, std::vector<float>(kCount, 3));
  ASSERT_TRUE(other.Wait());
}

// A deadline of one thread ends all sums, each once.
TEST(StripedTransport, failureOfOneThread_failsAll) {
  LoopbackCluster cluster(2, /*warn_s=*/0.1, /*deadline_s=*/0.4, kThreads, {}, kThreads);
  FloatCall small(4, 0, DType::kFloat32, {1});
  small.Start(cluster.host(0));
  ASSERT_TRUE(Eventually([&] { return cluster.host(0).failure().has_value(); }));
  FloatCall large(4, 1, DType::kFloat32, std::vector<float>(300'000, 1)), other(5, 1, DType::kFloat32, {1});
  ASSERT_TRUE(small.Wait());
  ASSERT_TRUE(Eventually([&] { return !cluster.failures(0).empty(); }));
  large.Start(cluster.host(0));
  other.Start(cluster.host(0));
  for (FloatCall* call : {&small, &large, &other}) {
    ASSERT_TRUE(call->Wait());
    EXPECT_EQ(call->failure()->kind, "DeadlineExceededError");
    EXPECT_EQ(call->times_done(), 1);
  }
  EXPECT_EQ(cluster.failures(0).size(), 1u);
  EXPECT_TRUE(cluster.host(0).Drain(20));
  ASSERT_FALSE(cluster.stalls(0).empty());
  EXPECT_EQ(cluster.stalls(0)[0].stall.shard, 0u);
}

TEST(StripedTransport, stallNamesTheShardOfAll) {
  LoopbackCluster cluster(2, /*warn_s=*/0.1, /*deadline_s=*/30, 2 * kThreads, {}, kThreads);
  FloatCall waits(5, 0, DType::kFloat32, {1});
  waits.Start(cluster.host(0));
  ASSERT_TRUE(Eventually([&] { return !cluster.stalls(0).empty(); }));
  EXPECT_EQ(cluster.stalls(0)[0].stall.shard, 1u);
  ASSERT_TRUE(cluster.host(0).Oldest());
  EXPECT_EQ(cluster.host(0).Oldest()->first.shard, 1u);
}

TEST(StripedTransport, orderOfAThreadThatIsNotThere_isAFailure) {
  LoopbackCluster cluster(2, 5, 30, kThreads, {}, kThreads);
  cluster.host(1).DeliverOrderMessage("\x02 and more");
  ASSERT_TRUE(Eventually([&] { return cluster.host(1).failure().has_value(); }));
  EXPECT_EQ(cluster.host(1).failure()->kind, "ProtocolError");
}

TEST(StripedTransport, threadsThatDoNotDivideTheShards_areRefused) {
  EXPECT_THROW(LoopbackCluster(2, 5, 30, 3, {}, kThreads), std::invalid_argument);
}

}  // namespace
}  // namespace passing
