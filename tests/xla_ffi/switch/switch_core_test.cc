#include "switch/switch_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/switch/slot_packets.h"

namespace passing {
namespace {

struct Sent {
  uint16_t job;
  std::vector<uint8_t> bytes;
  size_t packets;
  std::vector<Address> workers, from;
  bool by_group;
};

class Switch {
 public:
  SwitchCore core{16, [this](const Outgoing& out) {
                    sent_.push_back({.job = out.job,
                                     .bytes = {out.bytes.begin(), out.bytes.end()},
                                     .packets = out.packet_bytes.size(),
                                     .workers = {out.workers.begin(), out.workers.end()},
                                     .from = {out.from.begin(), out.from.end()},
                                     .by_group = out.group != nullptr});
                  }};

  Verdict Take(const Packet& packet) {
    return core.OnPacket(Bytes(packet), AddressOf(packet.header.job, packet.header.worker), /*by_group=*/false);
  }
  std::vector<Sent> Flush() {
    core.Flush();
    return std::exchange(sent_, {});
  }

 private:
  std::vector<Sent> sent_;
};

const Address kOwn[] = {AddressOf(90, 0), AddressOf(90, 1)};

TEST(SwitchCore, resultsGoToAllWorkersAndToOneThatAsksAgain) {
  Switch one;
  const JobSlots job = MakeJob(3, 2);
  EXPECT_THROW(one.core.AddJob(job, {.own = {kOwn[0]}}), std::invalid_argument);
  one.core.AddJob(job, {.own = {kOwn[0], kOwn[1]}});
  EXPECT_EQ(one.Take(From(0)), Verdict::kAdded);
  EXPECT_EQ(one.Take(From(1)), Verdict::kComplete);
  const std::vector<Sent> all = one.Flush();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].job, 3);
  EXPECT_EQ(all[0].workers, job.addresses);
  EXPECT_EQ(all[0].from, (std::vector{kOwn[0], kOwn[1]}));
  EXPECT_FALSE(all[0].by_group);

  EXPECT_EQ(one.Take(From(1)), Verdict::kResend);
  const std::vector<Sent> again = one.Flush();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].bytes, all[0].bytes);
  EXPECT_EQ(again[0].workers, std::vector{job.addresses[1]});
  EXPECT_EQ(again[0].from, std::vector{kOwn[1]});
  EXPECT_TRUE(one.Flush().empty());
}

TEST(SwitchCore, groupIsSentResultsOnceUntilItStops) {
  Switch one;
  one.core.AddJob(MakeJob(3, 2), {.group = MulticastGroup{.group = AddressOf(91, 0), .from = kOwn[0]}});
  for (const uint16_t worker : {0, 1, 1}) one.Take(From(worker));
  const std::vector<Sent> sent = one.Flush();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_TRUE(sent[0].by_group);
  EXPECT_EQ(sent[0].workers.size(), 2u);  // where the group can't be sent to
  EXPECT_FALSE(sent[1].by_group);
  EXPECT_EQ(sent[1].workers.size(), 1u);
  one.core.StopMulticast(3);
  one.core.StopMulticast(4);  // no such job: nothing happens
  for (const uint16_t worker : {0, 1}) one.Take(AtSequence(17, From(worker)));
  EXPECT_FALSE(one.Flush().at(0).by_group);
}

TEST(SwitchCore, lanesGoToTheWorkersThatNeedThem) {
  const auto needing_none = [](uint16_t worker) {
    return With(From(worker), [](wire::Header& header) { header.flags = wire::kFlagNoResult; });
  };
  const size_t whole = Bytes(From(0)).size();
  for (const bool has_group : {false, true}) {
    Switch one;
    const JobSlots job = MakeJob(3, 3);
    ResultWays ways{.own = {kOwn[0], kOwn[1], kOwn[0]}};
    if (has_group) ways.group = MulticastGroup{.group = AddressOf(91, 0), .from = kOwn[0]};
    one.core.AddJob(job, ways);
    one.Take(needing_none(0));
    one.Take(From(1));
    EXPECT_EQ(one.Take(needing_none(2)), Verdict::kComplete);
    std::vector<Sent> sent = one.Flush();
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent[0].bytes.size(), whole);
    EXPECT_EQ(sent[0].workers, std::vector{job.addresses[1]});
    EXPECT_EQ(sent[0].from, std::vector{kOwn[1]});
    EXPECT_EQ(sent[1].bytes.size(), wire::kHeaderBytes);
    EXPECT_TRUE(has_group || sent[1].workers == (std::vector{job.addresses[0], job.addresses[2]}));
    EXPECT_FALSE(sent[0].by_group);
    EXPECT_EQ(sent[1].by_group, has_group);

    for (const uint16_t worker : {0, 1}) one.Take(AtSequence(17, From(worker)));
    EXPECT_EQ(one.Take(AtSequence(17, needing_none(2))), Verdict::kComplete);
    sent = one.Flush();
    ASSERT_EQ(sent.size(), has_group ? 1u : 2u);
    EXPECT_EQ(sent[0].bytes.size(), whole);
    EXPECT_EQ(sent[0].by_group, has_group);
    EXPECT_EQ(sent[0].workers.size(), has_group ? 3u : 2u);
  }
}

// Each worker behind a port of its own is sent what it needs, up to eight copies.
TEST(SwitchCore, whoIsBehindAPortOfItsOwnHearsNothingInVain) {
  for (const uint16_t workers : {3, 9, 10}) {
    Switch one;
    ResultWays ways{.group = MulticastGroup{.group = AddressOf(91, 0), .from = kOwn[0]}, .ports_apart = true};
    one.core.AddJob(MakeJob(3, workers), ways);
    uint32_t headers = 0;
    for (uint32_t i = 0; i < 64; ++i) {
      for (uint16_t worker = 0; worker < workers; ++worker) {
        one.Take(AtSequence(9 + 16 * i, With(From(worker), [&](wire::Header& header) {
                              if (worker == 1) header.flags = wire::kFlagNoResult;
                            })));
      }
      for (const Sent& each : one.Flush()) {
        const bool is_header = each.bytes.size() == wire::kHeaderBytes;
        EXPECT_EQ(each.by_group, workers == 10);
        EXPECT_EQ(each.workers.size(), is_header ? 1u : workers == 10 ? 10u : workers - 1u);
        headers += is_header;
      }
    }
    EXPECT_EQ(headers, workers == 10 ? 0u : 64u);

    // A worker that needs nothing for long, as the root of a broadcast, has an idle port.
    std::vector<Sent> last;
    for (uint32_t i = 0; i < 600; ++i) {
      for (uint16_t worker = 0; worker < workers; ++worker) {
        one.Take(AtSequence(2000 + 16 * i, With(From(worker), [&](wire::Header& header) {
                              if (worker == 1) header.flags = wire::kFlagNoResult;
                            })));
      }
      last = one.Flush();
    }
    ASSERT_EQ(last.size(), 1u);
    EXPECT_TRUE(last[0].by_group);
  }
}

TEST(SwitchCore, aWorkerGetsItsAnswersInTheirOrder) {
  Switch one;
  one.core.AddJob(MakeJob(3, 1), {});
  for (const uint32_t sequence : {9, 9, 17}) one.Take(AtSequence(sequence, From(0)));
  const std::vector<Sent> sent = one.Flush();
  ASSERT_EQ(sent.size(), 3u);
  for (const size_t i : {0, 1, 2}) EXPECT_EQ(sent[i].bytes[15], i == 2 ? 17 : 9);
}

// Whole results of one worker and headers of all others' are sent together, but none much later than those behind it.
TEST(SwitchCore, anAnswerOvertakesFewOthers) {
  Switch one;
  one.core.AddJob(MakeJob(3, 2), {.group = MulticastGroup{.group = AddressOf(91, 0), .from = kOwn[0]}});
  constexpr uint32_t kCount = 4 * wire::kReorderedChunks;
  for (uint32_t i = 0; i < kCount; ++i) {
    one.Take(AtSequence(9 + 16 * i, From(0)));
    one.Take(AtSequence(9 + 16 * i, With(From(1), [](wire::Header& header) { header.flags = wire::kFlagNoResult; })));
  }
  const std::vector<Sent> sent = one.Flush();
  EXPECT_LE(sent.size(), 6u);
  uint32_t latest = 0;
  std::vector<int> counts(kCount);
  for (const Sent& each : sent) {
    const size_t bytes = each.bytes.size() / each.packets;
    EXPECT_EQ(bytes == wire::kHeaderBytes, each.by_group);
    for (size_t i = 0; i < each.packets; ++i) {
      wire::Header header;
      ASSERT_EQ(wire::Decode(std::span(each.bytes).subspan(i * bytes, bytes), header), wire::DecodeError::kNone);
      const uint32_t number = (header.sequence - 9) / 16;
      latest = std::max(latest, number);
      EXPECT_LT(latest - number, wire::kReorderedChunks);
      ++counts.at(number);
    }
  }
  EXPECT_EQ(counts, std::vector<int>(kCount, 2));
}

TEST(SwitchCore, answersThatGoTheSameWayLeaveTogether) {
  Switch one;
  one.core.AddJob(MakeJob(3, 1), {});
  one.core.AddJob(MakeJob(4, 1, /*slot_first=*/4), {});
  const auto of_other = [](uint16_t slot) {
    return With(From(0), [slot](wire::Header& header) { header.job = 4, header.slot = slot; });
  };
  one.Take(From(0));
  one.Take(of_other(5));
  one.Take(of_other(6));
  one.Take(From(0));  // asks again: another way, though there is no other worker
  const std::vector<Sent> sent = one.Flush();
  ASSERT_EQ(sent.size(), 3u);
  for (const size_t i : {0, 1, 2}) {
    EXPECT_EQ(sent[i].job, i == 1 ? 4 : 3);
    EXPECT_EQ(sent[i].packets, i == 1 ? 2u : 1u);
    EXPECT_EQ(sent[i].bytes.size(), sent[i].packets * Bytes(From(0)).size());
    EXPECT_EQ(sent[i].workers, std::vector{AddressOf(sent[i].job, 0)});
  }
  one.core.RemoveJob(4);
  EXPECT_EQ(one.Take(of_other(5)), Verdict::kForeignJob);
}

TEST(SwitchCore, sumsGoToTheParentWhoseGroupIsWatched) {
  Switch one;
  one.core.AddJob(MakeChildJob(), {.hears_parents_group = true});
  uint32_t sequence = 8;
  const auto sum = [&](bool by_group) {
    const auto at = [&](Packet packet, uint16_t slot_first) {
      return With(std::move(packet), [&](wire::Header& header) {
        header.slot = static_cast<uint16_t>(slot_first + sequence % 4);
        header.version = sequence / 4 % 2;
        header.sequence = sequence;
      });
    };
    for (const uint16_t worker : {0, 1}) one.Take(at(From(worker), 0));
    EXPECT_TRUE(one.Flush().at(0).workers.empty());
    const std::vector<uint8_t> answer = Bytes(at(FromParent(), 40));
    EXPECT_EQ(one.core.OnPacket(answer, kParentAddress, by_group), Verdict::kAnswered);
    EXPECT_EQ(one.Flush().at(0).workers.size(), 2u);
    ++sequence;
  };
  for (int i = 0; i < 63; ++i) sum(/*by_group=*/false);
  sum(/*by_group=*/true);
  for (int i = 0; i < 63; ++i) sum(/*by_group=*/false);
  // A header of a result that is here already, or whose lanes are needed, shows that the group is heard.
  EXPECT_EQ(one.core.OnPacket(Bytes(FromParent()), kParentAddress, /*by_group=*/true), Verdict::kStale);
  for (int i = 0; i < 63; ++i) sum(/*by_group=*/false);
  EXPECT_TRUE(one.core.HearsParentsGroup(3));
  sum(/*by_group=*/false);
  EXPECT_FALSE(one.core.HearsParentsGroup(3));
  EXPECT_TRUE(one.core.HearsParentsGroup(4));  // no such job
}

// Whole results and headers may come to this switch alone, as the group has no part in them. But headers that it had to
// ask for again show that the group is lost.
TEST(SwitchCore, resultsOfTheParentForWhichItDidNotAskShowNothing) {
  Switch one;
  one.core.AddJob(MakeChildJob(), {.hears_parents_group = true});
  uint32_t sequence = 8;
  const auto sum = [&](uint8_t flags, uint8_t flags_of_result, bool asks_again) {
    const auto at = [&](Packet packet, uint16_t slot_first, uint8_t has_flags) {
      return With(std::move(packet), [&](wire::Header& header) {
        header.slot = static_cast<uint16_t>(slot_first + sequence % 4);
        header.version = sequence / 4 % 2;
        header.sequence = sequence;
        header.flags = has_flags;
      });
    };
    for (const uint16_t worker : {0, 1}) one.Take(at(From(worker), 0, flags));
    if (asks_again) {
      EXPECT_EQ(one.Take(at(From(0), 0, flags)), Verdict::kForwardedAgain);
    }
    const std::vector<uint8_t> answer = Bytes(at(FromParent(), 40, flags_of_result));
    EXPECT_EQ(one.core.OnPacket(answer, kParentAddress, /*by_group=*/false), Verdict::kAnswered);
    one.Flush();
    ++sequence;
  };
  constexpr uint8_t kHeader = wire::kFlagBare | wire::kFlagNoResult;
  for (int i = 0; i < 100; ++i) sum(wire::kFlagBare, 0, /*asks_again=*/true);  // lanes that others leave out
  for (int i = 0; i < 100; ++i) sum(wire::kFlagNoResult, kHeader, /*asks_again=*/false);
  for (int i = 0; i < 1023; ++i) sum(wire::kFlagNoResult, kHeader, /*asks_again=*/true);
  EXPECT_TRUE(one.core.HearsParentsGroup(3));
  sum(wire::kFlagNoResult, kHeader, /*asks_again=*/true);
  EXPECT_FALSE(one.core.HearsParentsGroup(3));
}

}  // namespace
}  // namespace passing
