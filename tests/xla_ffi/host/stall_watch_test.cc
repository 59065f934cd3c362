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
  ASSERT_TRUE(watch.IsDue(0, false, 50'000'000));
  EXPECT_TRUE(watch.Judge(1, 50'000'000).is_new);
  ASSERT_TRUE(watch.IsDue(1, false, 51'000'000));
  EXPECT_EQ(watch.Judge(1, 51'000'000).state, Verdict::kGoesOn);
  EXPECT_EQ(watch.next_timer_us(), 56'000'000);
  ASSERT_TRUE(watch.IsDue(1, false, 57'000'000));
  const Verdict verdict = watch.Judge(1, 57'000'000);
  EXPECT_EQ(verdict.state, Verdict::kStalled);
  EXPECT_EQ(verdict.stalled_us, 6'000'000);
  EXPECT_TRUE(verdict.is_new);
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
