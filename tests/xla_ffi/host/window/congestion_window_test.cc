#include "host/window/congestion_window.h"

#include <gtest/gtest.h>

namespace passing {
namespace {

// Chunks take 100 us where nothing queues, and `queued_us` more by now.
RoundTrip RoundTripWith(int64_t queued_us) {
  RoundTrip round_trip;
  round_trip.Measure(100, 0);
  for (int64_t now_us = 0; now_us < 1'000'000; now_us += 10'000) round_trip.Measure(100 + queued_us, now_us);
  return round_trip;
}

// So many round trips in which all that may be in flight has its result.
void Go(CongestionWindow& window, int round_trips, int64_t now_us = 0, const RoundTrip& round_trip = RoundTrip()) {
  for (; round_trips > 0; --round_trips) {
    const uint32_t chunks = window.chunks();
    for (uint32_t result = 0; result < chunks; ++result) window.OnResult(now_us, round_trip);
  }
}

TEST(CongestionWindow, beginsAtItsGreatestWhereEachRankHasAPort) {
  EXPECT_EQ(CongestionWindow(4096, 1).chunks(), 1024u);
  EXPECT_EQ(CongestionWindow(512, 1).chunks(), 256u);  // six super-packets
  EXPECT_EQ(CongestionWindow(64, 1).chunks(), 64u);    // all there are
  EXPECT_EQ(CongestionWindow(4, 1).chunks(), 4u);
}

// All ranks together send what a port's buffer takes.
TEST(CongestionWindow, ranksShareAPort) {
  for (const uint32_t ranks : {2u, 8u, 64u}) EXPECT_EQ(CongestionWindow(1024, ranks).chunks() * ranks, 128u);
  EXPECT_EQ(CongestionWindow(1024, 1'000).chunks(), 1u);
  EXPECT_EQ(CongestionWindow(4, 2).chunks(), 4u);
}

// As many bytes, but no fewer chunks than four after silence.
TEST(CongestionWindow, fewerLongChunks) {
  EXPECT_EQ(CongestionWindow(128, 1, 2232).chunks(), 41u);
  EXPECT_EQ(CongestionWindow(1024, 1, 2232).chunks(), 256u);  // a quarter of the slots
  EXPECT_EQ(CongestionWindow(1024, 1, 64).chunks(), 256u);    // not more short ones: they cost as much to handle
  CongestionWindow window(128, 2, 2232);
  EXPECT_EQ(window.chunks(), 10u);
  Go(window, 16);
  EXPECT_NEAR(window.chunks() * 2, 41, 3);
  window.OnSilence(1);
  window.OnSilence(2);
  window.OnSilence(3);
  EXPECT_EQ(window.chunks(), 4u);
}

TEST(CongestionWindow, allRanksTogetherAddEightChunksARoundTrip) {
  for (const uint32_t ranks : {2u, 8u, 64u}) {
    CongestionWindow window(1024, ranks);
    Go(window, 16);
    EXPECT_NEAR(window.chunks() * ranks, 256, 16 + ranks / 2);
    Go(window, 100'000);
    EXPECT_EQ(window.chunks(), 256u);
  }
}

TEST(CongestionWindow, lossesOfOneRoundTripCountOnce) {
  CongestionWindow window(4096, 1);
  const RoundTrip round_trip = RoundTripWith(900);
  const int64_t later_us = 1'000 + round_trip.smoothed_us();
  for (int64_t now_us : {int64_t{1'000}, int64_t{1'001}, later_us - 1}) window.OnLoss(now_us, round_trip);
  EXPECT_EQ(window.chunks(), 870u);  // 0.85 * 1,024
  window.OnLoss(later_us, round_trip);
  EXPECT_EQ(window.chunks(), 740u);
}

// For a second after a small sum that goes ahead of a large one's data, what is queued takes half a millisecond.
TEST(CongestionWindow, isShortForASmallSum) {
  CongestionWindow window(1024, 1);
  const RoundTrip queued = RoundTripWith(2'300);
  window.OnResult(1'000, queued);
  EXPECT_EQ(window.chunks(), 256u);  // nothing small came
  window.OnSilence(1);               // what it would regain counts no more
  window.OnSmallSum(1'000);
  for (int result = 0; result < 1000; ++result) window.OnResult(1'001, queued);
  EXPECT_EQ(window.chunks(), 64u);  // that many keep the link busy
  Go(window, 4, 999'999, queued);
  EXPECT_EQ(window.chunks(), 64u);
  Go(window, 4, 999'999, RoundTripWith(499));  // it queues no more
  EXPECT_NEAR(window.chunks(), 64 + 4 * 8, 1);
  Go(window, 4, 1'001'000, queued);  // there were no small sums for a second
  EXPECT_NEAR(window.chunks(), 64 + 8 * 8, 4);
}

// One chunk can be sent, however many ranks there are.
TEST(CongestionWindow, isNeverClosedForASmallSum) {
  for (const uint32_t lanes : {360u, 2232u}) {
    for (const uint32_t ranks : {64u, 1'000u}) {
      CongestionWindow window(1024, ranks, lanes);
      window.OnSmallSum(0);
      for (int64_t now_us = 1; now_us < 900'000; now_us += 1'000) window.OnResult(now_us, RoundTripWith(50'000));
      EXPECT_GE(window.chunks(), 1u);
    }
  }
}

// Else a few of many shards would have all the work, one after the other.
TEST(CongestionWindow, isLessShortForSeveralShards) {
  for (const auto& [shards, chunks] : {std::pair(2u, 128u), {4u, 256u}, {16u, 256u}}) {
    CongestionWindow window(1024, 1, 360, shards);
    window.OnSmallSum(0);
    window.OnResult(1, RoundTripWith(10'000));
    EXPECT_EQ(window.chunks(), chunks);
  }
}

TEST(CongestionWindow, isNotShortWhereLittleIsQueued) {
  CongestionWindow window(1024, 1);
  window.OnSmallSum(0);
  window.OnResult(1'000, RoundTripWith(499));
  EXPECT_EQ(window.chunks(), 256u);
  window.OnResult(1'000, RoundTripWith(800));
  EXPECT_NEAR(window.chunks(), 256 * 600 / 900, 3);
}

// Where round trips are as short as ever, nothing queues: whatever loses packets, it isn't a port that overflows.
TEST(CongestionWindow, lossWithoutAQueueClosesNothing) {
  CongestionWindow window(1024, 8);
  for (int64_t now_us = 0; now_us < 1'000'000; now_us += 1'000) window.OnLoss(now_us, RoundTripWith(0));
  EXPECT_EQ(window.chunks(), 16u);
}

// However often packets get lost, enough stays in flight to keep a port busy: what the least round trip takes, and 32
// chunks of all ranks.
TEST(CongestionWindow, lossNarrowsItToWhatKeepsThePortBusy) {
  CongestionWindow window(1024, 8);
  Go(window, 200);
  for (int64_t now_us = 0; now_us < 1'000'000; now_us += 1'000) {
    // 160 chunks take 200 us, so a port carries 80 in the 100 us of the least round trip.
    const auto queued_us = static_cast<int64_t>(window.chunks()) * 8 * 100 / 80 - 100;
    window.OnLoss(now_us, RoundTripWith(std::max(queued_us, int64_t{0})));
  }
  EXPECT_NEAR(window.chunks() * 8, 80 + 32, 8);
}

// Else one that waits for a slow rank would widen without end, until all of it arrived somewhere at once.
TEST(CongestionWindow, isNotWidenedWhileMuchIsQueued) {
  CongestionWindow window(1024, 8);
  Go(window, 10'000, 0, RoundTripWith(300));
  EXPECT_NEAR(window.chunks() * 8, 256 * 400 / 300, 8);  // three quarters of it are queued
}

TEST(CongestionWindow, isNotWidenedForASecondAfterALoss) {
  CongestionWindow window(1024, 8);
  Go(window, 40);
  window.OnLoss(1'000, RoundTripWith(900));
  const uint32_t chunks = window.chunks();
  Go(window, 100, 1'000'999);
  EXPECT_EQ(window.chunks(), chunks);
  Go(window, 10, 1'001'000);
  EXPECT_GT(window.chunks(), chunks);
}

// All chunks that are sent after a pause queue, as they meet no results.
TEST(CongestionWindow, sendsItsShareAfterAPause) {
  CongestionWindow window(1024, 8);
  Go(window, 1'000, /*now_us=*/1'000);
  EXPECT_EQ(window.chunks(), 256u);
  const RoundTrip round_trip = RoundTripWith(0);
  window.OnSent(1'200, round_trip);
  EXPECT_EQ(window.chunks(), 256u);
  window.OnSent(1'201, round_trip);
  EXPECT_EQ(window.chunks(), 16u);
  window.OnResult(1'300, round_trip);
  EXPECT_EQ(window.chunks(), 17u);
}

// After a late rank the next sum has nearly all it had; where nothing comes through, a rank sends few at a time.
TEST(CongestionWindow, silencesHalveIt) {
  CongestionWindow window(4096, 1);
  for (uint32_t count : {1, 2, 3}) window.OnSilence(count);
  EXPECT_EQ(window.chunks(), 128u);
  for (int sum = 0; sum < 100; ++sum) window.OnSilence(1);
  EXPECT_EQ(window.chunks(), 16u);
  for (uint32_t count = 1; count < 10; ++count) window.OnSilence(count);
  EXPECT_EQ(window.chunks(), 4u);
  window.OnLoss(1, RoundTripWith(900));
  EXPECT_EQ(window.chunks(), 4u);
  for (int result = 0; result < 48; ++result) window.OnResult(0, RoundTrip());  // by a quarter a round trip
  EXPECT_EQ(window.chunks(), 16u);
}

TEST(CongestionWindow, aRankOfManyAlwaysHasSomeInFlight) {
  CongestionWindow many(1024, 64), few(8, 1);
  for (uint32_t count = 1; count < 20; ++count) {
    many.OnSilence(count);
    few.OnSilence(count);
  }
  EXPECT_EQ(many.chunks(), 2u);
  EXPECT_EQ(few.chunks(), 4u);
}

}  // namespace
}  // namespace passing
