#include "host/order/order.h"

#include <gtest/gtest.h>

#include <random>

namespace passing {
namespace {

constexpr uint32_t kWindow = 16;

SegmentId Id(uint64_t site, uint32_t execution, uint32_t segment = 0, uint32_t pass = 0) {
  return {site, execution, 0, segment, pass};
}

std::span<const uint8_t> Span(const std::string& message) {
  return {reinterpret_cast<const uint8_t*>(message.data()), message.size()};
}

// Appends on rank 0 and returns whether it had to be announced.
bool Announces(Order& leader, const SegmentId& id) {
  std::string announcement;
  leader.Append(id, 3, 1, "name", announcement);
  return !announcement.empty();
}

TEST(Order, firstExecutionIsAnnouncedTheNextOnesAreNot) {
  Order leader(kWindow);
  for (uint32_t execution = 0; execution < 4; ++execution) {
    for (uint64_t site : {5, 6, 7}) {
      // The step from the last site back to the first is new in the second execution.
      EXPECT_EQ(Announces(leader, Id(site, execution)), execution == 0 || (execution == 1 && site == 5));
    }
  }
}

TEST(Order, theSegmentsOfASumFollowEachOther) {
  Order leader(kWindow);
  std::string announcement;
  leader.Append(Id(1, 0, 0), 5, 4, "", announcement);
  announcement.clear();
  leader.Append(Id(1, 0, 1), 5, 4, "", announcement);
  leader.Append(Id(1, 0, 2), 5, 4, "", announcement);
  EXPECT_TRUE(announcement.empty());
  leader.Append(Id(1, 0, 3), 2, 4, "", announcement);  // the last is shorter
  EXPECT_FALSE(announcement.empty());
  EXPECT_FALSE(leader.Predict());
}

TEST(Order, aScanOfAnyLengthIsLearnt) {
  Order leader(kWindow);
  auto execute = [&, execution = uint32_t{0}](uint32_t length) mutable {
    int announced = 0;
    for (uint32_t step = 0; step < length; ++step) announced += Announces(leader, {1, execution, step});
    announced += Announces(leader, Id(2, execution++));
    return announced;
  };
  EXPECT_EQ(execute(10), 3);  // the first, "and so on", the end
  execute(10);
  EXPECT_EQ(execute(10), 0);
  EXPECT_EQ(execute(10), 0);
  EXPECT_LE(execute(12), 2);  // not the usual end; the end
}

// A sum in a branch that every third execution takes.
TEST(Order, twoSumsThatTakeTurns) {
  Order leader(kWindow);
  Order follower(kWindow);
  for (uint32_t execution = 0; execution < 3; ++execution) {
    int announced = 0;
    const auto append = [&](uint64_t site, uint32_t segment, uint32_t segments, bool takes_turns = false) {
      std::string message;
      const uint32_t chunks = segment + 1 == segments ? 2 : 5;  // the last is shorter
      const LogEntry entry = leader.Append(Id(site, execution, segment), chunks, segments, "", message, takes_turns);
      auto rest = Span(message);
      announced += !message.empty();
      const LogEntry same = message.empty() ? follower.Speculate() : follower.Read(rest)->entries.back();
      EXPECT_EQ(same.id, entry.id);
      EXPECT_EQ(same.first_position, entry.first_position);
      EXPECT_EQ(leader.in_turns(), follower.in_turns());
    };
    append(1, 0, 6);
    append(1, 1, 6);
    append(2, 0, 3, /*takes_turns=*/true);
    for (uint32_t segment = 1; segment < 3; ++segment) {
      EXPECT_TRUE(leader.in_turns());
      append(1, segment + 1, 6);
      append(2, segment, 3);
    }
    EXPECT_TRUE(leader.in_turns());
    append(1, 4, 6);
    EXPECT_FALSE(leader.in_turns());
    append(1, 5, 6);
    // Each sum's start, and the ends; then from the last one back to the first.
    EXPECT_EQ(announced, execution == 0 ? 4 : execution == 1 ? 1 : 0);
  }
}

TEST(Order, executionsWithoutASumAreLearnt) {
  Order leader(kWindow);
  const auto execute = [&](uint32_t execution) { return Announces(leader, Id(1, execution)); };
  EXPECT_TRUE(execute(2));
  EXPECT_TRUE(execute(5));
  for (uint32_t execution = 8; execution < 20; execution += 3) EXPECT_FALSE(execute(execution)) << execution;
  EXPECT_TRUE(execute(21));
}

TEST(Order, followerReadsWhatTheLeaderAppended) {
  Order leader(kWindow);
  Order follower(kWindow);
  std::string message;
  const LogEntry first = leader.Append(Id(9, 0), 4, 2, "train.py:1", message);
  const LogEntry second = leader.Append(Id(9, 0, 1), 2, 2, "train.py:1", message);
  auto rest = Span(message);
  auto change = follower.Read(rest);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->name, "train.py:1");
  ASSERT_EQ(change->entries.size(), 1u);
  EXPECT_EQ(change->entries[0].id, first.id);
  EXPECT_EQ(change->entries[0].end_position(), 4u);
  change = follower.Read(rest);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->entries[0].first_position, second.first_position);
  EXPECT_EQ(change->name, "");
  EXPECT_TRUE(rest.empty());
}

TEST(Order, deviationSkipsWhatFollowersMayHaveSent) {
  Order leader(kWindow);
  Order follower(kWindow);
  std::string message;
  leader.Append(Id(1, 0), 3, 1, "", message);
  leader.Append(Id(2, 0), 3, 1, "", message);
  leader.Append(Id(1, 1), 3, 1, "", message);
  auto rest = Span(message);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(follower.Read(rest));
  const LogEntry guess = follower.Speculate();
  EXPECT_EQ(guess.id, Id(2, 1));
  EXPECT_EQ(guess.first_position, 9u);
  follower.Speculate();

  message.clear();
  const LogEntry entry = leader.Append(Id(3, 0), 3, 1, "", message);
  EXPECT_EQ(entry.first_position, 9u + 2 * kWindow);
  rest = Span(message);
  const auto change = follower.Read(rest);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->keep, 3u);
  ASSERT_EQ(change->entries.size(), 1u);
  EXPECT_EQ(change->entries[0].first_position, entry.first_position);
  EXPECT_EQ(follower.next_position(), leader.next_position());
  // The void guesses left no trace in the executions.
  message.clear();
  leader.Append(Id(2, 1), 3, 1, "", message);
  rest = Span(message);
  ASSERT_TRUE(follower.Read(rest));
  EXPECT_EQ(follower.Predict()->id, leader.Predict()->id);
}

TEST(Order, secondPassIsNeverPredictedAndTeachesNothing) {
  Order leader(kWindow);
  Announces(leader, Id(1, 0));
  Announces(leader, Id(1, 1));
  EXPECT_TRUE(Announces(leader, Id(1, 1, 0, 1)));
  EXPECT_FALSE(Announces(leader, Id(1, 2)));
}

TEST(Order, Read_nonsense) {
  Order leader(kWindow);
  std::string message;
  leader.Append(Id(1, 0), 3, 1, "a name", message);
  const std::string good = message;
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    Order follower(kWindow);
    const std::string cut = good.substr(0, bytes);
    auto rest = Span(cut);
    EXPECT_FALSE(follower.Read(rest)) << bytes;
  }
  Order follower(kWindow);
  auto rest = Span(good);
  ASSERT_TRUE(follower.Read(rest));
  rest = Span(good);
  EXPECT_FALSE(follower.Read(rest));  // a duplicate would void what is certain
}

TEST(Order, Read_aNameThatIsNoText) {
  Order leader(kWindow), follower(kWindow);
  std::string message;
  leader.Append(Id(1, 0), 3, 1, "na\xFFme", message);
  auto rest = Span(message);
  EXPECT_FALSE(follower.Read(rest));
}

// The history is bounded, whether every segment is announced or predicted; what goes on is learnt anew.
TEST(Order, aJobThatNeverRepeatsItselfIsForgotten) {
  constexpr size_t kMaxContexts = 100;
  Order leader(kWindow, 0, kMaxContexts);
  std::string announcement;
  uint64_t names = 0;
  for (uint64_t site = 1; site <= 1000; ++site) {
    announcement.clear();
    leader.Append(Id(site, 0), 3, 1, "a name", announcement);
    leader.Settle(site);
    names += announcement.ends_with("a name");
    EXPECT_LE(leader.contexts(), kMaxContexts);
  }
  EXPECT_EQ(names, 1000u);
  for (uint32_t segment = 0; segment < 1000; ++segment) {
    announcement.clear();
    leader.Append(Id(5000, 0, segment), 3, 1000, "a name", announcement);
    EXPECT_EQ(announcement.empty(), segment > 0);
  }
  EXPECT_TRUE(Announces(leader, Id(1, 1)));  // whose first execution is forgotten
  EXPECT_LE(leader.contexts(), kMaxContexts);
  Announces(leader, Id(2, 1));
  Announces(leader, Id(1, 2));
  EXPECT_FALSE(Announces(leader, Id(2, 2)));
}

// Whatever rank 0 appends, and however far followers speculate and lag, they end up with rank 0's log.
TEST(Order, followersAgreeWithTheLeaderForEverySeed) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    // Every other job forgets its history now and then.
    const size_t max_contexts = seed % 2 == 0 ? 1 + seed % 7 : Order::kMaxContexts;
    Order leader(kWindow, 0, max_contexts);
    Order follower(kWindow, 0, max_contexts);
    std::vector<LogEntry> truth;
    std::vector<LogEntry> log;
    std::vector<std::pair<size_t, std::string>> messages;  // length of the truth, announcement
    uint32_t sums[4] = {};
    size_t read = 0;
    const auto catch_up = [&] {
      for (; read < messages.size(); ++read) {
        auto rest = Span(messages[read].second);
        const auto change = follower.Read(rest);
        ASSERT_TRUE(change);
        while (!log.empty() && log.back().index >= change->keep) log.pop_back();
        log.insert(log.end(), change->entries.begin(), change->entries.end());
        ASSERT_EQ(log.size(), messages[read].first);
      }
    };
    for (int i = 0; i < 200; ++i) {
      const uint64_t site = random() % 10 < 8 ? i % 3 : random() % 4;
      std::string message;
      // Sums of one segment, and of three, which may take turns with others.
      const bool is_long = seed % 3 == 0;
      const SegmentId id = is_long ? SegmentId{site + 1, sums[site] / 3, 0, sums[site] % 3}
                                   : SegmentId{site + 1, sums[site] / 5, sums[site] % 5};
      const bool takes_turns = is_long && random() % 3 == 0;
      truth.push_back(leader.Append(id, 1 + site, is_long ? 3 : 1, "", message, takes_turns));
      ++sums[site];
      if (!message.empty()) messages.emplace_back(truth.size(), message);
      if (random() % 4 == 0) catch_up();
      const uint64_t certain = log.empty() ? 0 : log.back().end_position();
      while (random() % 3 != 0 && follower.Predict() && follower.next_position() < certain + kWindow) {
        log.push_back(follower.Speculate());
      }
    }
    catch_up();
    while (log.size() < truth.size()) log.push_back(follower.Speculate());
    for (size_t i = 0; i < truth.size(); ++i) {
      ASSERT_EQ(log[i].id, truth[i].id) << i;
      ASSERT_EQ(log[i].first_position, truth[i].first_position) << i;
      ASSERT_EQ(log[i].chunk_count, truth[i].chunk_count) << i;
    }
  }
}

}  // namespace
}  // namespace passing
