#include "host/transport/caller_wait.h"

#include <gtest/gtest.h>

namespace passing {
namespace {

constexpr int64_t kLookUs = CallerWait::kLookUs, kWaitUs = CallerWait::kWaitUs;

// How many of `sums` wait for their results, all of which take so long.
int Waits(CallerWait& wait, int64_t took_us, int sums) {
  int waits = 0;
  for (int64_t now_us = 0; now_us < 10'000 * sums; now_us += 10'000) {
    if (!wait.OnStart(now_us)) continue;
    ++waits;
    took_us < kWaitUs ? wait.OnDone(now_us + took_us) : wait.OnGivenUp();
  }
  return waits;
}

TEST(CallerWait, looksForAShortTime_thenSleeps) {
  CallerWait wait(2);
  EXPECT_FALSE(wait.is_next());  // nobody is known to want it
  ASSERT_TRUE(wait.OnStart(100));
  EXPECT_TRUE(wait.is_next());
  EXPECT_TRUE(wait.looks(100 + kLookUs - 1));
  EXPECT_FALSE(wait.looks(100 + kLookUs));
  EXPECT_EQ(wait.until_us(), 100 + kWaitUs);
}

TEST(CallerWait, whereResultsComeSoonAllWait) {
  CallerWait wait(2);
  EXPECT_EQ(Waits(wait, kLookUs / 2, 1000), 1000);
  ASSERT_TRUE(wait.OnStart(0));
  EXPECT_TRUE(wait.looks(0));
}

TEST(CallerWait, whereResultsComeLaterItOnlySleeps) {
  CallerWait wait(2);
  int looks = 0;
  for (int64_t now_us = 0; now_us < 1'000'000; now_us += 1000) {
    ASSERT_TRUE(wait.OnStart(now_us));
    looks += wait.looks(now_us);
    wait.OnDone(now_us + 2 * kLookUs);
  }
  EXPECT_LT(looks, 15);
  EXPECT_GT(looks, 5);  // it tries again now and then
}

TEST(CallerWait, wherePeersAreLateTheThreadServes) {
  CallerWait wait(2);
  EXPECT_LT(Waits(wait, 2 * kWaitUs, 1000), 15);
  EXPECT_FALSE(wait.is_next());
  // Once they come in time, all wait again.
  Waits(wait, kLookUs / 2, 1000);
  EXPECT_EQ(Waits(wait, kLookUs / 2, 1000), 1000);
}

TEST(CallerWait, oneFailureDoesntCount) {
  CallerWait wait(2);
  int waits = 0;
  for (int i = 0; i < 1000; ++i) {
    if (!wait.OnStart(0)) continue;
    ++waits;
    i % 10 == 0 ? wait.OnGivenUp() : wait.OnDone(1);
  }
  EXPECT_GT(waits, 850);
}

TEST(CallerWait, onOneCoreItOnlySleeps) {
  CallerWait wait(1);
  ASSERT_TRUE(wait.OnStart(100));
  EXPECT_FALSE(wait.looks(100));
  EXPECT_EQ(wait.until_us(), 100 + kWaitUs);
}

// Somebody else has work for the core: whoever yields waits for milliseconds, whoever wakes up comes soon.
TEST(CallerWait, whereYieldingTakesLongItSleeps) {
  CallerWait wait(2);
  ASSERT_TRUE(wait.OnStart(0));
  wait.OnYield(CallerWait::kYieldUs);
  EXPECT_TRUE(wait.looks(1));
  wait.OnYield(CallerWait::kYieldUs + 1);
  EXPECT_FALSE(wait.looks(1));
  wait.OnDone(2);
  int looks = 0;
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(wait.OnStart(0));
    looks += wait.looks(0);
    wait.OnDone(2);
  }
  EXPECT_EQ(looks, 0);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(wait.OnStart(0));
    looks += wait.looks(0);
    wait.OnDone(2);
  }
  EXPECT_GT(looks, 40);
}

TEST(CallerWait, callersWithOtherThingsToDoDontWaitNext) {
  CallerWait wait(2);
  ASSERT_TRUE(wait.OnStart(0));
  wait.OnDone(1);
  wait.OnOther();
  EXPECT_FALSE(wait.is_next());
  EXPECT_TRUE(wait.OnStart(10));
  EXPECT_TRUE(wait.is_next());
}

}  // namespace
}  // namespace passing
