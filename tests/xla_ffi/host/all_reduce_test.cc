#include "host/all_reduce.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>

#include "../tests/xla_ffi/net/fake_network.h"
#include "host/order/order.h"
#include "host/sums/sum_plan.h"
#include "wire/lanes.h"

namespace passing {
namespace {

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
  auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {9}});
  all_reduce.Start(
      {.key = {}, .spec = shape, .inputs = {data}, .outputs = {data}, .done = [&](const Failure*) { done = true; }}, 0);
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

// Foreign and foul packets change nothing but a counter.
TEST(AllReduce, OnPacket_malformedForeignPastFuture) {
  std::vector<std::vector<uint8_t>> sent;
  FakeDriver driver([&](std::vector<uint8_t> packet) { sent.push_back(std::move(packet)); });
  const JobConfig job{
      .rank = 0, .world_size = 1, .shards = {{.job = 3, .epoch = 7}, {.job = 3, .epoch = 7}}, .slots_per_shard = 16};
  AllReduce all_reduce(job, {&driver, &driver}, [](std::string) {});
  int32_t data[4] = {1, -2, 3, 4};
  bool done = false;
  auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {4}});
  all_reduce.Start(
      {.key = {}, .spec = shape, .inputs = {data}, .outputs = {data}, .done = [&](const Failure*) { done = true; }}, 0);
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
  auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = dtype, .leaf_elements = {data.size()}});
  all_reduce.Start({.key = {.site = static_cast<uint64_t>(dtype) * 10'000 + data.size(), .execution = execution},
                    .spec = shape,
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
    auto shape = std::make_shared<SumSpec>(
        SumSpec{.site_name = std::string(400, 'x'), .dtype = DType::kInt32, .leaf_elements = {1}});
    for (AllReduce* rank : {&leader, &follower}) {
      rank->Start({.key = {.site = site}, .spec = shape, .inputs = {data}, .outputs = {data}, .done = [](auto) {}}, 0);
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
    auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {4}});
    follower_.Start({.key = {.site = site, .execution = execution},
                     .spec = shape,
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
