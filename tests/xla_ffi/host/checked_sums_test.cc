// Checked sums in whole hosts: how many tries a switch that lies has, and what it can't do to the job's order.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/support/cluster.h"
#include "host/all_reduce.h"
#include "wire/lanes.h"

namespace passing {
namespace {

// Makes of a contribution what the switch of a job with one rank answers.
void MakeResult(std::vector<uint8_t>& packet) {
  wire::Header header;
  ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
  header.type = wire::PacketType::kResult;
  header.worker = wire::kEveryWorker;
  wire::Encode(header, packet.data());
}

// A job of one rank, whose switch is the test.
struct LoneRank {
  explicit LoneRank(uint32_t lanes_per_chunk)
      : job{.rank = 0,
            .world_size = 1,
            .shards = {{.job = 3, .epoch = 7}},
            .slots_per_shard = 256,
            .lanes_per_chunk = lanes_per_chunk,
            .check_key = SumCheck::Key{1}},
        all_reduce(job, {&driver}, [](std::string) {}) {}

  template <typename T>
  void Start(DType dtype, std::vector<T>& data) {
    auto spec = std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = dtype, .leaf_elements = {data.size()}});
    all_reduce.Start({.key = {},
                      .spec = spec,
                      .inputs = {data.data()},
                      .outputs = {data.data()},
                      .done = [&](const Failure* failure) { done = failure == nullptr; }},
                     0);
  }

  std::vector<std::vector<uint8_t>> sent;
  FakeDriver driver{[&](std::vector<uint8_t> packet) { sent.push_back(std::move(packet)); }};
  JobConfig job;
  AllReduce all_reduce;
  bool done = false;
};

// The switch answers each of these chunks once with a wrong sum, and then with the right one.
TEST(CheckedSums, wrongResultsOfAnEpochAreLimited) {
  for (const uint64_t chunks : {64u, 65u}) {
    LoneRank rank(/*lanes_per_chunk=*/8);
    std::vector<int32_t> data(chunks * (8 - LanesBehind(rank.job)), 5);
    rank.Start(DType::kInt32, data);
    for (int64_t now_us = 0; !rank.done && !rank.all_reduce.failure() && now_us < 1'000'000; now_us += 1000) {
      rank.all_reduce.OnTimer(now_us);
      for (std::vector<uint8_t>& packet : std::exchange(rank.sent, {})) {
        MakeResult(packet);
        std::vector<uint8_t> wrong = packet;
        wrong[wire::kHeaderBytes] ^= 1;
        rank.all_reduce.OnPacket(0, wrong, now_us);
        if (!rank.all_reduce.failure()) rank.all_reduce.OnPacket(0, packet, now_us);
      }
    }
    EXPECT_EQ(rank.all_reduce.failure() ? rank.all_reduce.failure()->kind : "", chunks > 64 ? "WrongSumError" : "");
    EXPECT_EQ(rank.all_reduce.stats().sums_wrong, chunks);
  }
}

// A switch keeps the exponents of a small sum back, and tries one code after the other of the data that was sent at
// once. One result is read. If the guess of the exponents counts, it was a wrong sum; whoever adds rightly gets on.
TEST(CheckedSums, guessedDataHasOneTryBeforeTheExponents) {
  for (const bool guess_counts : {true, false}) {
    SCOPED_TRACE(guess_counts);
    LoneRank rank(/*lanes_per_chunk=*/64);
    // At the first guess, elements of this size are exact, and of the other one aren't.
    std::vector<float> data(4, guess_counts ? 3.0f : 1e30f);
    const std::vector<float> expected = data;
    rank.Start(DType::kFloat32, data);
    rank.all_reduce.OnTimer(0);
    ASSERT_EQ(rank.sent.size(), 2u);
    for (std::vector<uint8_t>& packet : rank.sent) MakeResult(packet);
    const std::vector<uint8_t> guessed = rank.sent[0], exponents = rank.sent[1];
    rank.sent.clear();
    for (uint32_t code = 1; code < 1000; ++code) {
      std::vector<uint8_t> wrong = guessed;
      uint8_t* const lanes = &wrong[wire::kHeaderBytes];
      wire::StoreLane(lanes, 0, wire::LoadLane(lanes, 0) + code);
      EXPECT_FALSE(rank.all_reduce.OnPacket(0, wrong, 1));
    }
    EXPECT_FALSE(rank.all_reduce.OnPacket(0, guessed, 1));  // unread: that one of the 1,000 is right tells nothing
    EXPECT_EQ(rank.all_reduce.stats().packets_dropped, 1000u);
    EXPECT_EQ(rank.all_reduce.stats().sums_wrong, 0u);
    EXPECT_TRUE(rank.all_reduce.OnPacket(0, exponents, 2));
    EXPECT_EQ(rank.all_reduce.stats().guesses_right, guess_counts ? 1u : 0u);
    EXPECT_EQ(rank.all_reduce.stats().sums_wrong, guess_counts ? 1u : 0u);
    for (int64_t now_us = 2; !rank.done && now_us < 2'000'000; now_us += 1000) {
      rank.all_reduce.OnTimer(now_us);
      for (std::vector<uint8_t>& packet : std::exchange(rank.sent, {})) {
        MakeResult(packet);
        rank.all_reduce.OnPacket(0, packet, now_us);
      }
    }
    EXPECT_TRUE(rank.done);
    EXPECT_EQ(data, expected);
  }
}

constexpr uint64_t kSites[] = {0x1111111111111111, 0x2222222222222222};

// A switch adds rightly, but tells rank 1 another order: one sum's positions are the other's there.
void SwapSites(uint32_t to, std::string& message) {
  if (to != 1) return;
  const std::string one(8, '\x11'), other(8, '\x22');
  for (size_t at = 0; at + 8 <= message.size(); ++at) {
    const bool is_one = message.compare(at, 8, one) == 0;
    if (!is_one && message.compare(at, 8, other) != 0) continue;
    message.replace(at, 8, is_one ? other : one);
    at += 7;
  }
}

TEST(CheckedSums, aSwitchThatSwapsSumsMakesNoneOfThemWrong) {
  struct Row {
    const char* description;
    DType dtype;
    uint64_t elements;
    uint32_t world_size;
    bool is_confidential;
  };
  const Row rows[] = {{"floats", DType::kFloat32, 2000, 2, true},
                      {"a small sum, which guesses", DType::kFloat32, 40, 2, true},
                      {"integers", DType::kInt32, 2000, 2, true},
                      {"exponents that have a seal each", DType::kFloat32, 2000, 9, false},
                      {"checked alone", DType::kInt32, 40, 3, false}};
  for (const auto& [description, dtype, elements, world_size, is_confidential] : rows) {
    for (const bool swaps : {false, true}) {
      SCOPED_TRACE(std::string(description) + (swaps ? ", swapped" : ""));
      ClusterOptions options{.world_size = world_size, .faults = {}, .check_key = SumCheck::Key{1}, .plain = true};
      if (swaps) options.relays_order = SwapSites;
      if (is_confidential) options.mask_key = LaneMasks::Key{2};
      Cluster cluster(1, options);
      const auto spec =
          std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = dtype, .leaf_elements = {elements}});
      std::vector<std::vector<int32_t>> data;  // four bytes an element: zeros, or 1.0 and its like
      data.resize(2 * size_t{world_size}, std::vector<int32_t>(elements, 0x3F800000));
      uint32_t done = 0;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        for (uint32_t sum = 0; sum < 2; ++sum) {
          void* const first = data[2 * size_t{rank} + sum].data();
          cluster.Start(rank, {.key = {.site = kSites[sum]},
                               .spec = spec,
                               .inputs = {first},
                               .outputs = {first},
                               .done = [&](const Failure* failure) { done += failure == nullptr; }});
        }
      }
      cluster.Run(100'000'000);
      EXPECT_EQ(done, swaps ? 0 : 2 * world_size);
      EXPECT_EQ(cluster.failure(1) ? cluster.failure(1)->kind : "", swaps ? "WrongSumError" : "");
    }
  }
}

}  // namespace
}  // namespace passing
