#include "host/sums/sum_times.h"

#include <gtest/gtest.h>

namespace passing {
namespace {

TEST(SumTimesTest, CountsBySizeAndByTime) {
  SumTimes times;
  for (int i = 0; i < 4; ++i) times.OnStarted(1000);
  times.OnCompleted(4096, 1000, 1100);        // the largest and the longest of the first classes
  times.OnCompleted(4097, 1000, 1101);        // neither
  times.OnCompleted(1 << 20, 1000, 251'000);  // 250 ms
  times.OnCompleted(uint64_t{1} << 40, 0, 60'000'000);
  const SumTimes::BySize& by_size = times.by_size();
  EXPECT_EQ(by_size[0].counts[0], 1u);
  EXPECT_EQ(by_size[1].counts[1], 1u);
  EXPECT_EQ(by_size[2].counts[7], 1u);
  EXPECT_EQ(by_size[2].total_us, 250'000);
  EXPECT_EQ(by_size.back().counts.back(), 1u);
  EXPECT_EQ(by_size.back().total_us, 60'000'000);
}

TEST(SumTimesTest, IsBusyWhileAnySumIsUnderWay) {
  SumTimes times;
  EXPECT_EQ(times.busy_us(50), 0);
  times.OnStarted(100);
  times.OnStarted(150);
  EXPECT_EQ(times.busy_us(170), 70);
  times.OnCompleted(1, 100, 200);
  times.OnCompleted(1, 150, 300);
  EXPECT_EQ(times.busy_us(1000), 200);
  times.OnStarted(1000);
  EXPECT_EQ(times.busy_us(1010), 210);
}

TEST(SumTimesTest, AFailureEndsAllSums) {
  SumTimes times;
  times.OnStarted(100);
  times.OnStarted(130);
  times.OnFailed();
  EXPECT_EQ(times.busy_us(1000), 30);
  times.OnFailed();
  EXPECT_EQ(times.busy_us(2000), 30);
}

}  // namespace
}  // namespace passing
