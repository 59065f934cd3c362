#include "host/transport/wake_up.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace passing {
namespace {

constexpr int64_t kNever = INT64_MAX, kLingerUs = WakeUp::kLingerUs;

class WakeUpTest : public testing::Test {
 protected:
  // Has a caller called?
  bool called() const {
    pollfd readable{.fd = wake_up_.fd(), .events = POLLIN, .revents = 0};
    return poll(&readable, 1, 0) == 1;
  }
  WakeUp wake_up_;
};

TEST_F(WakeUpTest, onlyAThreadThatSleepsIsWoken) {
  wake_up_.Wake();
  EXPECT_FALSE(called());
  EXPECT_EQ(wake_up_.OnSleep(0, 500), 500);
  wake_up_.WakeBy(500);
  EXPECT_FALSE(called());
  wake_up_.WakeBy(499);
  EXPECT_TRUE(called());
  wake_up_.OnAwake(/*readable=*/false);
  EXPECT_FALSE(called());
}

// Callers start a small sum, and send it, while the thread sleeps: it sees its result, and never its timer.
TEST_F(WakeUpTest, whoSumsAgainAtOnceNeverWakesTheThread) {
  for (int64_t now_us = 0; now_us < 100'000; now_us += 100) {
    ASSERT_EQ(wake_up_.OnSleep(now_us, kNever), now_us + kLingerUs);
    wake_up_.WakeBy(now_us + 50 + kLingerUs);  // the least RTO
    ASSERT_FALSE(called()) << now_us;
    wake_up_.OnAwake(/*readable=*/true);
  }
}

TEST_F(WakeUpTest, whereNothingHappensItSleepsForEver) {
  EXPECT_EQ(wake_up_.OnSleep(0, 300), 300);
  wake_up_.OnAwake(false);
  EXPECT_EQ(wake_up_.OnSleep(300, kNever), 300 + kLingerUs);
  wake_up_.OnAwake(false);
  EXPECT_EQ(wake_up_.OnSleep(300 + kLingerUs, kNever), kNever);
}

}  // namespace
}  // namespace passing
