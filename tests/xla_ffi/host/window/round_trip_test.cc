#include "host/window/round_trip.h"

#include <gtest/gtest.h>

namespace passing {
namespace {

TEST(RoundTrip, beforeTheFirstSample) {
  const RoundTrip round_trip;
  EXPECT_EQ(round_trip.smoothed_us(), 0);
  EXPECT_EQ(round_trip.rto_us(), 10'000);
}

TEST(RoundTrip, firstSampleThenItsAverage) {
  RoundTrip round_trip;
  round_trip.Measure(4'000, 4'000);
  EXPECT_EQ(round_trip.smoothed_us(), 4'000);
  EXPECT_EQ(round_trip.rto_us(), 2 * 4'000 + 4 * 2'000);
  round_trip.Measure(4'800, 20'000);
  EXPECT_EQ(round_trip.smoothed_us(), 4'100);
  EXPECT_EQ(round_trip.rto_us(), 2 * 4'100 + 4 * 1'700);  // the variation: 2,000 less a quarter of 1,200
}

TEST(RoundTrip, oneSampleARoundTrip) {
  RoundTrip round_trip;
  round_trip.Measure(4'000, 4'000);
  round_trip.Measure(100, 7'999);
  EXPECT_EQ(round_trip.smoothed_us(), 4'000);
  round_trip.Measure(3'200, 8'000);
  EXPECT_EQ(round_trip.smoothed_us(), 3'900);
}

// A chunk takes the least of all samples of the last ten to twenty seconds where nothing queues.
TEST(RoundTrip, theLeastOfLate) {
  RoundTrip round_trip;
  round_trip.Measure(4'000, 1'000);
  round_trip.Measure(300, 1'001);
  EXPECT_EQ(round_trip.least_us(), 300);
  for (int64_t now_us = 100'000; now_us < 15'000'000; now_us += 100'000) {
    round_trip.Measure(700, now_us);
    EXPECT_EQ(round_trip.least_us(), 300);
  }
  for (int64_t now_us = 15'000'000; now_us < 21'000'000; now_us += 100'000) round_trip.Measure(700, now_us);
  EXPECT_EQ(round_trip.least_us(), 700);
}

TEST(RoundTrip, bounds) {
  RoundTrip fast, slow;
  for (int64_t now_us = 0; now_us < 100'000; now_us += 1'000) fast.Measure(30, now_us);
  EXPECT_EQ(fast.smoothed_us(), 30);
  EXPECT_EQ(fast.rto_us(), 2'000);
  slow.Measure(10'000'000, 0);  // a straggler
  EXPECT_EQ(slow.smoothed_us(), RoundTrip::kMaxRtoUs);
  EXPECT_EQ(slow.rto_us(), RoundTrip::kMaxRtoUs);
}

}  // namespace
}  // namespace passing
