#include "host/transport/event_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace passing {
namespace {

constexpr int64_t kLongUs = 20'000'000;

TEST(EventQueue, comesInOrder) {
  EventQueue events;
  EXPECT_FALSE(events.Wait(0));
  events.Push(OrderMessage{"a"});
  events.Push(GroupLost{.shard = 2});
  EXPECT_EQ(std::get<OrderMessage>(events.Wait(0).value()).bytes, "a");
  EXPECT_EQ(std::get<GroupLost>(events.Wait(0).value()).shard, 2u);
  EXPECT_FALSE(events.Wait(0));
}

TEST(EventQueue, onlyTheLatestStallWaits) {
  EventQueue events;
  events.Push(Stalled{.stall = {}, .stalled_s = 5});
  events.Push(OrderMessage{"a"});
  events.Push(Stalled{.stall = {}, .stalled_s = 6});
  EXPECT_TRUE(std::holds_alternative<OrderMessage>(events.Wait(0).value()));
  EXPECT_EQ(std::get<Stalled>(events.Wait(0).value()).stalled_s, 6);
  EXPECT_FALSE(events.Wait(0));
}

TEST(EventQueue, wakesWhoWaits) {
  EventQueue events;
  std::thread session([&] {
    EXPECT_TRUE(events.Wait(kLongUs).has_value());
    EXPECT_FALSE(events.Wait(kLongUs).has_value());  // closed
  });
  events.Push(OrderMessage{"a"});
  events.Close();
  session.join();
}

TEST(EventQueue, aClosedOneStillHasWhatCameBefore) {
  EventQueue events;
  events.Push(OrderMessage{"a"});
  events.Close();
  EXPECT_TRUE(events.Wait(kLongUs).has_value());
  EXPECT_FALSE(events.Wait(kLongUs).has_value());  // at once
}

}  // namespace
}  // namespace passing
