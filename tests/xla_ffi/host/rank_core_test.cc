#include "host/rank_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/net/fake_network.h"
#include "host/numbers/fixed_point.h"

namespace passing {
namespace {

RankOptions OptionsOf(double warn_s = 5, double deadline_s = 60) {
  return {.job = {.world_size = 2,
                  .shards = {{.job = 3, .epoch = 7, .name = "switch 0", .bare = true}},
                  .slots_per_shard = 16},
          .warn_s = warn_s,
          .deadline_s = deadline_s};
}

// Rank 0 of two, at one switch, sums one int32 at a time.
class Rank {
 public:
  explicit Rank(const RankOptions& options, bool hears_group = false)
      : core(options, {&driver_}, {hears_group}, [this](RankEvent event) { events_.push_back(std::move(event)); }) {}

  void Start(uint32_t execution, int64_t now_us) { Start(summed_, execution, {}, now_us); }
  // Nobody else has a row, so this rank needs no lanes of the result.
  void StartGather(uint32_t execution, int64_t now_us) { Start(gathered_, execution, {true, true}, now_us); }
  // Waits until the packet that was sent first is sent again. Returns when.
  int64_t AskAgain(int64_t now_us) {
    while (sent_.size() < 2) core.OnTimer(now_us = std::max(now_us, core.next_timer_us()));
    sent_.erase(sent_.begin() + 1, sent_.end());
    return now_us;
  }
  // The switch's answer to the packet that was sent first; returns whether a sum waited for it.
  bool Answer(int64_t now_us, bool by_group = false) {
    std::vector<uint8_t> packet = sent_.at(0);
    sent_.erase(sent_.begin());
    wire::Header header;
    EXPECT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
    header.type = wire::PacketType::kResult;
    header.worker = wire::kEveryWorker;
    if ((header.flags & wire::kFlagNoResult) != 0) header.flags |= wire::kFlagBare;
    packet.resize(header.packet_bytes());
    wire::Encode(header, packet.data());
    return core.OnPacket(0, packet, by_group, now_us);
  }
  // Runs until it is `until_us`, or something happened other than an order message.
  template <typename Event>
  std::optional<std::pair<int64_t, Event>> Await(int64_t now_us, int64_t until_us) {
    for (; now_us <= until_us; now_us = std::max(now_us + 1, core.next_timer_us())) {
      core.OnTimer(now_us);
      for (const RankEvent& event : std::exchange(events_, {})) {
        if (const auto* awaited = std::get_if<Event>(&event)) return std::pair(now_us, *awaited);
      }
    }
    return std::nullopt;
  }

  std::vector<std::string> outcomes;  // of the sums that are done; empty if they succeeded

 private:
  void Start(std::shared_ptr<const SumSpec> spec, uint32_t execution, std::vector<bool> own_rows, int64_t now_us) {
    core.Start({.key = {.site = 1, .execution = execution},
                .spec = std::move(spec),
                .inputs = {elements_},
                .outputs = {elements_},
                .done = [this](const Failure* failure) { outcomes.push_back(failure ? failure->kind : ""); },
                .own_rows = std::move(own_rows)},
               now_us);
    core.OnTimer(now_us);
  }

  const std::shared_ptr<const SumSpec> summed_ =
      std::make_shared<SumSpec>(SumSpec{.site_name = "site 1", .dtype = DType::kInt32, .leaf_elements = {1}});
  const std::shared_ptr<const SumSpec> gathered_ = std::make_shared<SumSpec>(
      SumSpec{.site_name = "site 1", .dtype = DType::kInt32, .leaf_elements = {2}, .moves = Moves::kGather});
  int32_t elements_[2] = {1, 2};
  std::vector<std::vector<uint8_t>> sent_;
  FakeDriver driver_{[this](std::vector<uint8_t> packet) { sent_.push_back(std::move(packet)); }};
  std::vector<RankEvent> events_;

 public:
  RankCore core;
};

TEST(RankCore, deadline_namesWhatItWaitedFor) {
  Rank rank(OptionsOf(/*warn_s=*/0.2, /*deadline_s=*/3.5));
  rank.Start(3, 0);
  const auto stalled = rank.Await<Stalled>(0, 3'000'000);
  ASSERT_TRUE(stalled);
  EXPECT_EQ(stalled->first, 200'000);
  EXPECT_EQ(stalled->second.stalled_s, 0.2);
  EXPECT_EQ(stalled->second.stall.site_name, "site 1");
  rank.core.NoteStall("Missing: rank 1.");
  const auto failed = rank.Await<Failure>(stalled->first, 10'000'000);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->first, 3'500'000);
  EXPECT_EQ(failed->second.kind, "DeadlineExceededError");
  for (const char* part : {"site 1 (execution 3, step 0)", "3.5 s", "switch 0", "Missing: rank 1.", "(now 3.5)"}) {
    EXPECT_NE(failed->second.message.find(part), std::string::npos) << part << " isn't in: " << failed->second.message;
  }
  EXPECT_TRUE(rank.outcomes.empty());
  rank.core.Fail(failed->second);
  rank.core.Fail({"HostLostError", "too late"});
  rank.Start(4, 4'000'000);
  EXPECT_EQ(rank.outcomes, (std::vector<std::string>{"DeadlineExceededError", "DeadlineExceededError"}));
  EXPECT_EQ(rank.core.next_timer_us(), INT64_MAX);
}

TEST(RankCore, deadline_notWhileThereIsProgress) {
  Rank rank(OptionsOf(0.1, 2));
  for (uint32_t execution = 0; execution < 8; ++execution) rank.Start(execution, 0);
  for (int64_t now_us = 300'000; now_us <= 2'400'000; now_us += 300'000) {
    EXPECT_FALSE(rank.Await<Failure>(now_us - 300'000, now_us - 1));
    EXPECT_TRUE(rank.Answer(now_us));
  }
  EXPECT_EQ(rank.outcomes, std::vector<std::string>(8));
  rank.Start(8, 2'400'000);
  EXPECT_EQ(rank.Await<Failure>(2'400'000, 9'000'000)->first, 4'400'000);
}

TEST(RankCore, onOrderMessage_thatMakesNoSenseFailsOnce) {
  Rank rank(OptionsOf());
  const uint8_t message[] = {1, 2, 3};
  for (int i = 0; i < 2; ++i) rank.core.OnOrderMessage(message);
  EXPECT_EQ(rank.Await<Failure>(0, 0)->second.kind, "ProtocolError");
  rank.core.OnOrderMessage(message);
  EXPECT_FALSE(rank.Await<Failure>(0, 0));
}

TEST(RankCore, onPacket_noticesThatAGroupIsLost) {
  Rank rank(OptionsOf(), /*hears_group=*/true), alone(OptionsOf());
  uint32_t execution = 0;
  const auto sum = [&](Rank& by, bool by_group) {
    by.Start(execution++, 0);
    EXPECT_TRUE(by.Answer(0, by_group));
  };
  for (int i = 0; i < 63; ++i) sum(rank, /*by_group=*/false);
  sum(rank, /*by_group=*/true);
  for (int i = 0; i < 63; ++i) sum(rank, /*by_group=*/false);
  EXPECT_FALSE(rank.Await<GroupLost>(0, 0));
  sum(rank, /*by_group=*/false);
  EXPECT_EQ(rank.Await<GroupLost>(0, 0)->second.shard, 0u);
  for (int i = 0; i < 100; ++i) sum(rank, /*by_group=*/false);
  EXPECT_FALSE(rank.Await<GroupLost>(0, 0));
  for (int i = 0; i < 100; ++i) sum(alone, /*by_group=*/false);
  EXPECT_FALSE(alone.Await<GroupLost>(0, 0));
}

// Switches send headers to one rank alone, whether it asked or not. Only those show something that it had to ask for.
TEST(RankCore, onPacket_noticesThatAGroupIsLostByHeaders) {
  Rank rank(OptionsOf(), /*hears_group=*/true);
  uint32_t execution = 0;
  int64_t now_us = 0;
  const auto gathers = [&](int count, bool asks_again) {
    for (int i = 0; i < count; ++i) {
      rank.StartGather(execution++, now_us);
      if (asks_again) now_us = rank.AskAgain(now_us);
      EXPECT_TRUE(rank.Answer(now_us));
    }
  };
  gathers(100, /*asks_again=*/false);
  gathers(1023, /*asks_again=*/true);
  gathers(1, /*asks_again=*/false);
  gathers(1023, /*asks_again=*/true);
  EXPECT_FALSE(rank.Await<GroupLost>(now_us, now_us));
  gathers(1, /*asks_again=*/true);
  EXPECT_TRUE(rank.Await<GroupLost>(now_us, now_us));
}

// Numbers that a switch sends at the join must not stop the process.
TEST(RankCore, jobOutOfRange) {
  FakeDriver driver([](std::vector<uint8_t>) {});
  const auto make = [&](auto&& change) {
    RankOptions options{.job = {.world_size = 2, .shards = {{.job = 1, .epoch = 1}}, .slots_per_shard = 64}};
    change(options.job);
    RankCore core(options, {&driver}, {false}, [](const RankEvent&) {});
  };
  EXPECT_NO_THROW(make([](JobConfig& job) { job.shards[0].slot_first = 65536 - 64; }));
  EXPECT_THROW(make([](JobConfig& job) { job.shards[0].slot_first = 65536 - 63; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.shards[0].slot_first = 0xFFFFFFFF; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.slots_per_shard = 0; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.slots_per_shard = 65; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.shards.clear(); }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.lanes_per_chunk = 2; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.lanes_per_chunk = wire::kMaxLanes + 1; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.world_size = kMaxWorldSize + 1; }), std::invalid_argument);
  EXPECT_NO_THROW(make([](JobConfig& job) { job.world_size = kMaxWorldSize, job.rank = kMaxWorldSize - 1; }));
  EXPECT_THROW(make([](JobConfig& job) { job.shards[0].worker = 64; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.rank = 2; }), std::invalid_argument);
}

}  // namespace
}  // namespace passing
