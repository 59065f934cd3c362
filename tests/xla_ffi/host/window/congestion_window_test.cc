#include "host/window/congestion_window.h"

#include <gtest/gtest.h>

namespace passing {
namespace {

TEST(CongestionWindow, beginsAtItsGreatest) {
  EXPECT_EQ(CongestionWindow(4096).chunks(), 1024u);
  EXPECT_EQ(CongestionWindow(512).chunks(), 256u);  // six super-packets
  EXPECT_EQ(CongestionWindow(64).chunks(), 64u);    // all there are
  EXPECT_EQ(CongestionWindow(4).chunks(), 4u);
}

TEST(CongestionWindow, lossesOfOneRoundTripCountOnce) {
  CongestionWindow window(4096);
  for (int64_t now_us : {1'000, 1'001, 1'099}) window.OnLoss(now_us, /*round_trip_us=*/100);
  EXPECT_EQ(window.chunks(), 870u);  // 0.85 * 1,024
  window.OnLoss(1'100, 100);
  EXPECT_EQ(window.chunks(), 739u);
}

TEST(CongestionWindow, growsByEightARoundTrip) {
  CongestionWindow window(4096);
  for (int64_t now_us = 0; now_us < 5; ++now_us) window.OnLoss(now_us, 1);
  const uint32_t before = window.chunks();
  for (uint32_t result = 0; result < before; ++result) window.OnResult();
  EXPECT_GE(window.chunks(), before + 7);
  EXPECT_LE(window.chunks(), before + 8);
  for (int result = 0; result < 1'000'000; ++result) window.OnResult();
  EXPECT_EQ(window.chunks(), 1024u);
}

// After a late rank the next sum has nearly all it had; where nothing comes through, a rank sends one at a time.
TEST(CongestionWindow, silencesHalveIt) {
  CongestionWindow window(4096);
  for (uint32_t count : {1, 2, 3}) window.OnSilence(count);
  EXPECT_EQ(window.chunks(), 128u);
  for (int sum = 0; sum < 100; ++sum) window.OnSilence(1);
  EXPECT_EQ(window.chunks(), 16u);
  for (uint32_t count = 1; count < 10; ++count) window.OnSilence(count);
  EXPECT_EQ(window.chunks(), 4u);
  window.OnLoss(1, 1);
  EXPECT_EQ(window.chunks(), 4u);
  for (int result = 0; result < 48; ++result) window.OnResult();  // by a quarter a round trip
  EXPECT_EQ(window.chunks(), 16u);
}

TEST(CongestionWindow, leavesEnoughForASmallSum) {
  CongestionWindow window(4096), few(8);
  for (int64_t now_us = 0; now_us < 1'000; ++now_us) {
    window.OnLoss(now_us, 1);
    few.OnLoss(now_us, 1);
  }
  EXPECT_EQ(window.chunks(), 16u);
  EXPECT_EQ(few.chunks(), 8u);
}

}  // namespace
}  // namespace passing
