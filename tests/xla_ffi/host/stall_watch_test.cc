#include "host/stall_watch.h"

#include <gtest/gtest.h>

namespace passing {
namespace {

constexpr int64_t kWarnUs = 5'000'000, kDeadlineUs = 60'000'000;
using Verdict = StallWatch::Verdict;

TEST(StallWatch, idleIsNoStall) {
  StallWatch watch(kWarnUs, kDeadlineUs);
  EXPECT_FALSE(watch.IsDue(0, /*idle=*/true, 100'000'000));
  EXPECT_EQ(watch.next_timer_us(), INT64_MAX);
  EXPECT_FALSE(watch.IsDue(0, /*idle=*/false, 100'000'000));
  EXPECT_EQ(watch.next_timer_us(), 105'000'000);
  EXPECT_FALSE(watch.IsDue(0, /*idle=*/true, 101'000'000));
  EXPECT_EQ(watch.next_timer_us(), INT64_MAX);
}

TEST(StallWatch, warnsEverySecondThenGivesUp) {
  StallWatch watch(kWarnUs, kDeadlineUs);
  int64_t now_us = 0;
  int warnings = 0, new_ones = 0;
  watch.IsDue(0, false, now_us);
  while (true) {
    now_us = watch.next_timer_us();
    ASSERT_FALSE(watch.IsDue(0, false, now_us - 1));
    ASSERT_TRUE(watch.IsDue(0, false, now_us));
    const Verdict verdict = watch.Judge(/*started_us=*/500'000, now_us);
    if (verdict.state == Verdict::kGoesOn) continue;  // it hasn't been pending for so long
    EXPECT_EQ(verdict.stalled_us, now_us - 500'000);
    if (verdict.state == Verdict::kLost) break;
    ++warnings;
    new_ones += verdict.is_new;
  }
  EXPECT_EQ(now_us, 500'000 + kDeadlineUs);
  EXPECT_EQ(warnings, 55);  // after 5 s to 59 s
  EXPECT_EQ(new_ones, 1);
}

TEST(StallWatch, progressBeginsAnother) {
  StallWatch watch(kWarnUs, kDeadlineUs);
  watch.IsDue(0, false, 0);
  ASSERT_TRUE(watch.IsDue(0, false, 5'500'000));
  EXPECT_TRUE(watch.Judge(1, 5'500'000).is_new);
  ASSERT_TRUE(watch.IsDue(1, false, 6'500'000));
  EXPECT_EQ(watch.Judge(1, 6'500'000).state, Verdict::kGoesOn);
  EXPECT_EQ(watch.next_timer_us(), 11'500'000);
  ASSERT_TRUE(watch.IsDue(1, false, 12'500'000));
  const Verdict verdict = watch.Judge(1, 12'500'000);
  EXPECT_EQ(verdict.state, Verdict::kStalled);
  EXPECT_EQ(verdict.stalled_us, 6'000'000);
  EXPECT_TRUE(verdict.is_new);
}

// The process is stopped for an hour, and all others may have been, too: a minute counts from when it goes on.
TEST(StallWatch, timeInWhichTheProcessStoodStillDoesntCount) {
  for (const int64_t stopped_us : {kWarnUs - 1, int64_t{30'000'000}}) {  // before the first warning is due, and later
    StallWatch watch(kWarnUs, kDeadlineUs);
    for (int64_t now_us = 0; now_us <= stopped_us; now_us += 500'000) {
      if (watch.IsDue(0, false, now_us)) watch.Judge(0, now_us);
    }
    const int64_t resumed_us = stopped_us + 3'600'000'000;
    EXPECT_FALSE(watch.IsDue(0, false, resumed_us));
    int64_t now_us = 0;
    Verdict verdict;
    while (verdict.state != Verdict::kLost) {
      now_us = watch.next_timer_us();
      ASSERT_TRUE(watch.IsDue(0, false, now_us));
      verdict = watch.Judge(0, now_us);
    }
    EXPECT_EQ(now_us, resumed_us + kDeadlineUs);
    EXPECT_EQ(verdict.stalled_us, kDeadlineUs);
  }
}

// Others make progress all the time, this sum makes none.
TEST(StallWatch, aSumThatIsPassedByAllOthersIsLost) {
  StallWatch watch(kWarnUs, kDeadlineUs);
  uint64_t results = 0;
  watch.IsDue(++results, false, 0);
  for (int64_t now_us = kWarnUs; now_us < 10 * kDeadlineUs; now_us += kWarnUs) {
    ASSERT_TRUE(watch.IsDue(++results, false, now_us));
    ASSERT_EQ(watch.Judge(/*started_us=*/0, now_us).state, Verdict::kGoesOn);
  }
  ASSERT_TRUE(watch.IsDue(++results, false, 10 * kDeadlineUs));
  const Verdict verdict = watch.Judge(0, 10 * kDeadlineUs);
  EXPECT_EQ(verdict.state, Verdict::kLost);
  EXPECT_EQ(verdict.stalled_us, 10 * kDeadlineUs);
}

}  // namespace
}  // namespace passing
