#include "host/window/slot_window.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <vector>

namespace passing {
namespace {

constexpr int64_t kRtoUs = 10'000;  // before the first measurement

// Sends positions [first, last), 1 us apart.
void Send(SlotWindow& window, uint64_t first, uint64_t last, int64_t now_us = 0) {
  for (uint64_t position = first; position < last; ++position) window.OnSent(position, now_us++);
}

TEST(SlotWindow, sendsNoFurtherThanTheSlotsReach) {
  SlotWindow window({1, 16});
  EXPECT_TRUE(window.CanSend(0));
  EXPECT_TRUE(window.CanSend(15));
  EXPECT_FALSE(window.CanSend(16));
  Send(window, 0, 16);
  window.OnResult(0, 100);
  EXPECT_FALSE(window.CanSend(16));
  window.Advance(1);
  EXPECT_TRUE(window.CanSend(16));
  EXPECT_FALSE(window.CanSend(17));
}

// A gap takes no slots, and leaves the ring's places to what follows, with three shards, too. The window has one gap.
TEST(SlotWindow, goesOnBehindAGap) {
  for (const uint32_t shards : {1u, 3u}) {
    SlotWindow window({shards, 16});
    const uint64_t all = shards * uint64_t{16}, first = 4, end = 4 + 2 * all;
    Send(window, 0, first);
    window.OnGap(first, end);
    EXPECT_EQ(window.end(), end + all - first);
    Send(window, end, window.end());
    EXPECT_EQ(window.InFlight(1), 1u);
    EXPECT_EQ(window.InFlight(static_cast<uint32_t>(end)), end);
    EXPECT_EQ(window.InFlight(first), std::nullopt);
    EXPECT_EQ(window.InFlightBetween(0, end).up, first);
    EXPECT_EQ(window.InFlightBetween(0, end + 3).up, first + 3);
    EXPECT_EQ(window.InFlightBetween(end, window.end()).up, all - first);
    window.OnGap(end + 2, end + 2 + 2 * all);
    EXPECT_EQ(window.end(), end + all - first);
    for (uint64_t position = 0; position < first; ++position) window.OnResult(position, 100);
    window.Advance(end);
    EXPECT_EQ(window.end(), end + 3 * all);
  }
}

// Results of the past, in order, duplicate, and of the future.
TEST(SlotWindow, InFlight_pastInOrderDuplicateFuture) {
  SlotWindow window({1, 16});
  Send(window, 0, 4);
  EXPECT_EQ(window.InFlight(0), 0u);
  EXPECT_EQ(window.InFlight(3), 3u);
  EXPECT_EQ(window.InFlight(4), std::nullopt);   // not sent
  EXPECT_EQ(window.InFlight(16), std::nullopt);  // outside the window
  EXPECT_EQ(window.InFlight(0xFFFFFFFF), std::nullopt);
  window.OnResult(0, 100);
  EXPECT_EQ(window.InFlight(0), std::nullopt);  // duplicate
  EXPECT_TRUE(window.Done(0));
  EXPECT_FALSE(window.Done(1));
  window.Advance(1);
  EXPECT_EQ(window.InFlight(0), std::nullopt);  // past
  EXPECT_TRUE(window.Done(0));
}

TEST(SlotWindow, InFlight_sequenceWraps) {
  SlotWindow window({1, 16});
  const uint64_t low = (uint64_t{1} << 32) - 2;
  window.Advance(low);
  Send(window, low, low + 4);
  EXPECT_EQ(window.InFlight(0xFFFFFFFE), low);
  EXPECT_EQ(window.InFlight(1), low + 3);
}

TEST(SlotWindow, resendsAfterTheRtoAndAdaptsIt) {
  SlotWindow window({1, 16});
  Send(window, 0, 1, 1000);
  EXPECT_EQ(window.next_timer_us(), 1000 + kRtoUs);
  EXPECT_EQ(window.NextResend(1000 + kRtoUs - 1), std::nullopt);
  EXPECT_EQ(window.NextResend(1000 + kRtoUs), 0u);
  EXPECT_EQ(window.NextResend(1000 + kRtoUs), std::nullopt);
  window.OnResult(0, 1000 + kRtoUs + 50);
  EXPECT_EQ(window.round_trip_us(), 0);  // which of the two was answered? (Karn)
  window.Advance(1);
  for (uint64_t position = 1; position < 200; ++position) {
    window.OnSent(position, 0);
    window.OnResult(position, 100);
    window.Advance(position + 1);
  }
  EXPECT_EQ(window.round_trip_us(), 100);
  EXPECT_EQ(window.rto_us(), 2000);  // the least
  EXPECT_EQ(window.next_timer_us(), INT64_MAX);
}

// A host was held up: everything in flight is old, but results come again.
TEST(SlotWindow, noTimeoutWhileResultsCome) {
  SlotWindow window({1, 256});
  Send(window, 0, 30);
  window.OnResult(0, kRtoUs);  // a round trip of 10 ms, so the RTO is 40 ms
  EXPECT_EQ(window.rto_us(), 40'000);
  EXPECT_EQ(window.NextResend(kRtoUs), std::nullopt);
  window.OnResult(1, 45'000);
  EXPECT_EQ(window.NextResend(49'000), std::nullopt);
  EXPECT_EQ(window.next_timer_us(), 50'002);  // but no chunk waits for more than 50 ms
  EXPECT_EQ(window.NextResend(50'002), 2u);
}

TEST(SlotWindow, resendsWhatLaterChunksOvertook) {
  SlotWindow window({1, 256});
  Send(window, 0, 140);
  for (uint64_t position = 1; position <= 64; ++position) window.OnResult(position, 100);
  window.OnResult(139, 100, /*in_order=*/false);    // as exponents are, which go ahead of the data
  EXPECT_EQ(window.NextResend(100), std::nullopt);  // 64 later ones may be reordering
  window.OnResult(65, 100);
  EXPECT_EQ(window.next_timer_us(), 0);
  EXPECT_EQ(window.NextResend(100), 0u);
  EXPECT_EQ(window.NextResend(100), std::nullopt);
  window.OnResult(138, 200);  // sent before 0 was sent again
  for (uint64_t position = 66; position < 74; ++position) {
    EXPECT_EQ(window.NextResend(200), position);
  }
  EXPECT_EQ(window.NextResend(200), std::nullopt);
}

// Headers without lanes are sent behind other packets, on the way up and on the way down.
TEST(SlotWindow, chunksThatLeaveOutLanesMayBeLater) {
  SlotWindow window({1, 256});
  window.OnSent(0, 0, {.up = false, .down = true});
  Send(window, 1, 140);
  for (uint64_t position = 1; position <= 128; ++position) window.OnResult(position, 100);
  EXPECT_EQ(window.NextResend(100), std::nullopt);
  window.OnResult(129, 100);
  EXPECT_EQ(window.NextResend(100), 0u);
}

TEST(SlotWindow, headersDoNotCount) {
  SlotWindow window({1, 1024});
  for (uint64_t position = 0; position < 512; ++position) {
    const bool up = position % 128 < 64;
    window.OnSent(position, 0, {.up = up, .down = !up});
  }
  const SlotWindow::Count all = window.InFlightBetween(0, 512);
  EXPECT_EQ(all.up, 256u);
  EXPECT_EQ(all.down, 256u);
  EXPECT_FALSE(window.HasRoom(all));
  window.OnResult(0, 100);
  EXPECT_FALSE(window.HasRoom(window.InFlightBetween(0, 512)));  // as many come down as before
  window.OnResult(64, 100);
  EXPECT_TRUE(window.HasRoom(window.InFlightBetween(0, 512)));
  EXPECT_EQ(window.InFlightBetween(60, 70).up, 4u);
  EXPECT_EQ(window.InFlightBetween(60, 70).down, 5u);
}

// One of two switches answers late: that is no loss, however many chunks of the other one are answered meanwhile.
TEST(SlotWindow, shardsDoNotOvertakeEachOther) {
  const Sharding sharding(2, 256);
  SlotWindow window(sharding);
  Send(window, 0, 512);
  for (uint64_t position = 0; position < 512; ++position) {
    if (sharding.ShardOf(position) == 1) window.OnResult(position, 600);
  }
  EXPECT_EQ(window.NextResend(600), std::nullopt);
  // Within the late one it counts as ever.
  for (uint64_t position = 1; position < 512; ++position) {
    if (sharding.ShardOf(position) == 0) window.OnResult(position, 700);
  }
  EXPECT_EQ(window.next_timer_us(), 0);
  EXPECT_EQ(window.NextResend(700), 0u);
  EXPECT_EQ(window.NextResend(700), std::nullopt);
}

TEST(SlotWindow, aStragglerIsProbedEverMoreSeldom) {
  SlotWindow window({1, 256});
  Send(window, 0, 256);
  int resends = 0;
  int64_t now_us = 0;
  while (now_us < 10'000'000) {
    now_us = std::max(now_us + 1, window.next_timer_us());
    while (window.NextResend(now_us)) ++resends;
  }
  EXPECT_LT(resends, 8 + 4 + 2 * (10'000 / 100 + 10));  // not 256 in each RTO
  EXPECT_GT(resends, 8 + 4 + 2 * 80);
  // It arrives: its results come one after the other, and show that nothing was lost.
  for (uint64_t position = 0; position < 256; ++position) {
    window.OnResult(position, now_us += 100);
    window.Advance(position + 1);
    EXPECT_EQ(window.NextResend(now_us), std::nullopt) << position;
  }
}

// Else a port that many ranks share, and that overflowed, would do so again and again.
TEST(SlotWindow, whatASilenceTakesForLostIsSentAgainInBursts_theLowestFirst) {
  SlotWindow window({1, 1024});
  Send(window, 0, 200);
  const auto burst = [&](int64_t now_us) {
    std::vector<uint64_t> positions;
    while (const auto position = window.NextResend(now_us)) positions.push_back(*position);
    return positions;
  };
  const auto range = [](uint64_t first, uint64_t last) {
    std::vector<uint64_t> positions(last - first);
    std::iota(positions.begin(), positions.end(), first);
    return positions;
  };
  EXPECT_TRUE(window.HasRoom({255, 0}));
  int64_t now_us = 199 + kRtoUs;
  EXPECT_EQ(burst(now_us), range(0, 8));
  EXPECT_FALSE(window.HasRoom({128, 0}));  // half of it
  // Nothing came of these, so that fewer are sent, the same again, as other ranks do so, too; and one of the others, as
  // what the lowest ones wait for may be among these.
  now_us = window.next_timer_us();
  EXPECT_EQ(burst(now_us), (std::vector<uint64_t>{0, 1, 2, 8}));
  EXPECT_FALSE(window.HasRoom({64, 0}));
  // They come. Soon others are sent again, ever more of them at a time.
  for (uint64_t position = 0; position < 4; ++position) window.OnResult(position, now_us + 50);
  window.OnResult(8, now_us + 50);
  EXPECT_EQ(burst(now_us + 100), range(0, 0));
  now_us = window.next_timer_us();
  EXPECT_EQ(burst(now_us).size(), 8u);
  window.OnResult(4, now_us + 50);
  now_us = window.next_timer_us();
  EXPECT_EQ(burst(now_us).size(), 16u);
}

TEST(SlotWindow, aSilenceOfAllShardsIsOne) {
  const Sharding sharding(4, 256);
  SlotWindow window(sharding);
  Send(window, 0, 256);
  int resends = 0;
  while (window.NextResend(255 + kRtoUs)) ++resends;
  EXPECT_EQ(resends, 4 * 8);
  EXPECT_TRUE(window.HasRoom({127, 0}));
  EXPECT_FALSE(window.HasRoom({128, 0}));
}

TEST(SlotWindow, Forget_whatCanNotComplete) {
  SlotWindow window({1, 16});
  Send(window, 0, 10);
  window.Forget(4);
  EXPECT_EQ(window.InFlight(3), 3u);
  EXPECT_EQ(window.InFlight(4), std::nullopt);
  int resends = 0;
  while (const auto position = window.NextResend(kRtoUs * 2)) {
    EXPECT_LT(*position, 4u);
    ++resends;
  }
  EXPECT_EQ(resends, 4);
}

TEST(SlotWindow, Skip_whatNobodyNeeds) {
  SlotWindow window({1, 16});
  window.OnSent(0, 0);
  window.OnSent(1, 0);
  window.Skip(1);  // sent
  window.Skip(2);  // not sent
  EXPECT_TRUE(window.Done(1));
  EXPECT_TRUE(window.Done(2));
  EXPECT_EQ(window.InFlight(1), std::nullopt);  // a late result is no result
  EXPECT_EQ(window.InFlight(0), 0u);
  window.OnResult(0, 10);
  window.Advance(3);
  EXPECT_EQ(window.NextResend(1'000'000), std::nullopt);
}

// A result after 100 us, and then late ones: something queues, and so what is lost is taken for congestion.
TEST(SlotWindow, lossNarrowsTheWindow) {
  SlotWindow window({1, 2048});
  Send(window, 0, 1);
  window.OnResult(0, 100);
  window.Advance(1);
  Send(window, 1, 502, 100);
  for (uint64_t position = 2; position < 502; ++position) window.OnResult(position, 3000);
  EXPECT_TRUE(window.HasRoom({511, 0}));  // a quarter of the slots
  EXPECT_FALSE(window.HasRoom({512, 0}));
  EXPECT_EQ(window.NextResend(3000), 1u);
  EXPECT_TRUE(window.HasRoom({434, 0}));  // 15 % less
  EXPECT_FALSE(window.HasRoom({436, 0}));
}

// A narrow window has few chunks in flight that might overtake each other, and a loss that is noticed late fills it.
TEST(SlotWindow, ofANarrowWindowFewerChunksOvertake) {
  SlotWindow window({1, 1024}, /*ranks_at_port=*/64);
  Send(window, 0, 5);
  for (uint64_t position = 1; position <= 3; ++position) window.OnResult(position, 100);
  EXPECT_EQ(window.NextResend(100), std::nullopt);
  window.OnResult(4, 100);
  EXPECT_EQ(window.NextResend(100), 0u);
  EXPECT_EQ(window.NextResend(100), std::nullopt);
}

// The last chunks of a sum have none behind them. Two of them are sent again soon: their results show that something
// was lost, and that the others may be lost, too.
TEST(SlotWindow, asksSoonForWhatIsLate) {
  SlotWindow window({1, 1024});
  for (uint64_t position = 0; position < 100; ++position) {
    window.OnSent(position, 1000 * static_cast<int64_t>(position));
    window.OnResult(position, 1000 * static_cast<int64_t>(position) + 100);
    window.Advance(position + 1);
  }
  const uint32_t chunks = window.chunks();
  Send(window, 100, 110, 100'000);
  const auto resends = [&](int64_t now_us) {
    std::vector<uint64_t> positions;
    while (const auto position = window.NextResend(now_us)) positions.push_back(*position);
    return positions;
  };
  EXPECT_EQ(window.next_timer_us(), 100'400);  // two round trips, and the gap between results twice
  EXPECT_EQ(resends(100'399), std::vector<uint64_t>{});
  EXPECT_EQ(resends(100'400), (std::vector<uint64_t>{100, 101}));
  EXPECT_EQ(resends(100'500), std::vector<uint64_t>{});
  EXPECT_EQ(window.next_timer_us(), 102'002);  // the RTO
  window.OnResult(100, 100'500);
  window.OnResult(101, 100'500);
  EXPECT_EQ(window.next_timer_us(), 100'800);
  EXPECT_EQ(resends(100'800), (std::vector<uint64_t>{102, 103, 104, 105}));
  EXPECT_EQ(window.chunks(), chunks);
}

}  // namespace
}  // namespace passing
