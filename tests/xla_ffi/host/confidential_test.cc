// Confidential sums: what hosts make of masked lanes, and what somebody learns who sees all packets.
// Packets::WatchMasks looks at every packet here, too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/support/cluster.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr LaneMasks::Key kKey{7, 1, 7};
constexpr Faults kFaults{.loss = 0.02, .duplicate = 0.02, .reorder = 0.1, .reorder_us = 1000};

void AddSites(Cluster& cluster) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt8,
                            DType::kInt16, DType::kInt32, DType::kInt64}) {
    cluster.AddSite(dtype, {2500, 3, 130}, 1);
    cluster.AddSite(dtype, {5}, 2);  // small, so it guesses
  }
  for (const WireDtype wire : {WireDtype::kInt16, WireDtype::kInt8, WireDtype::kInt4}) {
    cluster.AddSite(DType::kFloat32, {3000, 7}, 1, Op::kSum, wire);
  }
  cluster.AddSite(DType::kInt32, {500}, 2, Op::kMax);
}

// Some elements aren't finite, and some of the sums get theirs late.
TEST(Confidential, sumsHaveTheBitsThatTheyHaveWithoutMasks) {
  struct Row {
    const char* description;
    ClusterOptions options;
  };
  const Row rows[] = {
      {"one host", {.world_size = 1, .faults = {}, .mask_key = kKey}},
      {"two hosts", {.world_size = 2, .faults = kFaults, .mask_key = kKey}},
      {"three hosts, checked sums",
       {.world_size = 3, .faults = kFaults, .check_key = SumCheck::Key{1}, .mask_key = kKey}},
      {"checked alone", {.world_size = 7, .faults = kFaults, .check_key = SumCheck::Key{1}}},
      {"shards", {.world_size = 3, .shard_count = 2, .faults = kFaults, .mask_key = kKey}},
      {"two racks", {.world_size = 6, .trees = {Tree::Levels(6, {2})}, .faults = kFaults, .mask_key = kKey}},
      {"full packets",
       {.world_size = 5, .slot_count = 64, .lanes_per_chunk = 360, .faults = kFaults, .mask_key = kKey}},
      {"positions beyond 2^32",
       {.world_size = 2, .faults = {}, .first_position = (uint64_t{1} << 32) - 20, .mask_key = kKey}}};
  for (const auto& [description, options] : rows) {
    SCOPED_TRACE(description);
    Cluster cluster(5, options);
    AddSites(cluster);
    std::vector<uint32_t> sites;
    for (uint32_t site = 0; site < 20; ++site) sites.push_back(site);
    for (int execution = 0; execution < 3; ++execution) {
      cluster.Execute(sites, 1000);
      ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
    }
  }
}

// As many as one packet has room for.
TEST(Confidential, aLargeWorld) {
  ClusterOptions options{.world_size = 256,
                         .trees = {Tree::Levels(256, {16})},
                         .slot_count = 16,
                         .lanes_per_chunk = 360,
                         .faults = {.loss = 0.001},
                         .mask_key = kKey};
  Cluster cluster(1, options);
  cluster.AddSite(DType::kFloat32, {1000}, 1);
  cluster.AddSite(DType::kBFloat16, {500}, 1);
  cluster.AddSite(DType::kInt32, {100}, 1, Op::kMax);
  cluster.Execute({0, 1, 2}, 1000);
  ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
}

// Everybody sums `value`, `executions` times. Adds the lanes of all packets, by who sent them; resends are left out.
using Watched = std::map<std::string, std::vector<std::vector<uint32_t>>>;
void Watch(const std::optional<LaneMasks::Key>& mask_key, float value, uint32_t executions, Watched& watched) {
  constexpr uint32_t kRanks = 4;
  ClusterOptions options{.world_size = kRanks,
                         .trees = {Tree::Levels(kRanks, {2})},
                         .slot_count = 64,
                         .lanes_per_chunk = 360,
                         .faults = {},
                         .mask_key = mask_key,
                         .plain = true};
  Cluster cluster(1, options);

  std::set<std::vector<uint8_t>> seen;
  cluster.Observe([&](const simulation::Endpoint& from, std::span<const uint8_t> packet) {
    // A result goes to all, and each rack has numbers of its own.
    if (!seen.emplace(packet.begin() + wire::kHeaderBytes, packet.end()).second) return;
    wire::Header header;
    ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
    const bool is_host = from.machine <= kRanks;
    const char* what = header.type == wire::PacketType::kResult ? "results" : is_host ? "hosts" : "racks";
    std::vector<uint32_t>& lanes = watched[what].emplace_back();
    for (uint32_t i = 0; i < header.element_count; ++i) {
      lanes.push_back(wire::LoadLane(packet.data() + wire::kHeaderBytes, i));
    }
    EXPECT_TRUE(!mask_key || header.flags == 0);
  });
  const auto spec = std::make_shared<SumSpec>(
      SumSpec{.site_name = "gradients", .dtype = DType::kFloat32, .leaf_elements = {50'000, 7}});
  std::vector<std::vector<float>> elements(kRanks);
  for (uint32_t execution = 0; execution < executions; ++execution) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      elements[rank].assign(spec->elements(), value);
      float* const first = elements[rank].data();
      cluster.Start(rank, {.key = {.site = 9, .execution = execution},
                           .spec = spec,
                           .inputs = {first, first + 50'000},
                           .outputs = {first, first + 50'000},
                           .done = [](const Failure* failure) { EXPECT_EQ(failure, nullptr); }});
    }
    ASSERT_TRUE(cluster.Run(600'000'000)) << cluster.Stalls();
    for (const std::vector<float>& sums : elements) {
      for (const float sum : sums) {
        if (std::isnan(value)) {
          EXPECT_TRUE(std::isnan(sum));
        } else {
          EXPECT_EQ(sum, kRanks * value);
        }
      }
    }
  }
}

// Pearson's statistic of the bytes at one place in lanes, over 255 degrees of freedom, less its mean and in units of
// its standard deviation. Of random bytes it is beyond 6 with a probability of 1e-7 (Wilson and Hilferty's
// approximation of the chi-squared distribution).
double Deviation(const std::vector<std::vector<uint32_t>>& packets, int shift) {
  std::vector<double> counts(256);
  double total = 0;
  for (const std::vector<uint32_t>& lanes : packets) {
    for (const uint32_t lane : lanes) ++counts[lane >> shift & 0xFF];
    total += static_cast<double>(lanes.size());
  }
  double statistic = 0;
  for (const double count : counts) statistic += (count - total / 256) * (count - total / 256) / (total / 256);
  return (statistic - 255) / std::sqrt(2 * 255.0);
}

TEST(Confidential, allPacketsLookRandom) {
  for (const float value : {0.0f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    Watched watched;
    Watch(kKey, value, 2, watched);
    ASSERT_EQ(watched.size(), 3u);
    for (const auto& [who, packets] : watched) {
      EXPECT_GT(packets.size(), 280u) << who;
      for (int shift = 0; shift < 32; shift += 8) {
        EXPECT_LT(std::abs(Deviation(packets, shift)), 6) << who << ", " << value << ", bits from " << shift;
      }
      // The same sum twice, in packets of all hosts, racks and both directions: no two lanes beside each other come
      // twice (of 400,000 random pairs two are equal with a probability of 4e-9).
      std::set<std::pair<uint32_t, uint32_t>> pairs;
      size_t count = 0;
      for (const std::vector<uint32_t>& lanes : packets) {
        for (size_t i = 0; i + 1 < lanes.size(); i += 2, ++count) pairs.emplace(lanes[i], lanes[i + 1]);
      }
      EXPECT_EQ(pairs.size(), count) << who;
    }
  }
}

// So that the test above would notice.
TEST(Confidential, otherSumsShowWhatTheyAdd) {
  Watched watched;
  Watch(std::nullopt, 1.5f, 1, watched);
  for (const auto& [who, packets] : watched) EXPECT_GT(std::abs(Deviation(packets, 24)), 1000) << who;
}

}  // namespace
}  // namespace passing
