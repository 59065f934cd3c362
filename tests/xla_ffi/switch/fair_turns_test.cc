#include "switch/fair_turns.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace passing {
namespace {

// Serves so many turns of those that always wait, each at its price: what each of them had.
std::vector<uint64_t> Serve(FairTurns& turns, const std::vector<uint64_t>& prices, int count) {
  std::vector<size_t> waiting(prices.size());
  for (size_t i = 0; i < waiting.size(); ++i) waiting[i] = i;
  std::vector<uint64_t> had(prices.size());
  for (int i = 0; i < count; ++i) {
    const size_t next = turns.Next(waiting);
    turns.Charge(next, prices[next]);
    had[next] += prices[next];
  }
  return had;
}

TEST(FairTurns, allThatWaitHaveTheSame_howeverDearTheirTurnsAre) {
  FairTurns turns;
  const std::vector<uint64_t> had = Serve(turns, {1, 10, 100}, 10'000);
  for (const uint64_t one : had) EXPECT_NEAR(one, had[0], 100);
}

TEST(FairTurns, whoComesWaitsForOneTurnOfTheOther) {
  FairTurns turns;
  Serve(turns, {50}, 1000);
  const std::array<size_t, 2> both = {0, 1};
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(turns.Next(both), 1u);  // it wants little, and has it at once
    turns.Charge(1, 1);
    EXPECT_EQ(turns.Next(std::array<size_t, 1>{0}), 0u);
    turns.Charge(0, 50);
  }
}

TEST(FairTurns, nobodySavesUpTimeByBeingIdle) {
  FairTurns turns;
  Serve(turns, {1, 1}, 10);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(turns.Next(std::array<size_t, 1>{0}), 0u);
    turns.Charge(0, 10);
  }
  const std::vector<uint64_t> had = Serve(turns, {10, 10}, 100);
  EXPECT_NEAR(had[0], had[1], 10);
}

}  // namespace
}  // namespace passing
