#include "host/transport/wake_up.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <mutex>
#include <thread>

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

TEST_F(WakeUpTest, aParkedThreadIsWoken) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::thread thread([&] {
    std::unique_lock own(mutex);
    wake_up_.Park(own);
  });
  while (!wake_up_.parked()) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  EXPECT_TRUE(wake_up_.asleep());
  wake_up_.ServeByCaller();
  EXPECT_FALSE(wake_up_.asleep());
  wake_up_.Wake();  // the caller is awake: it looks by itself
  EXPECT_FALSE(called());
  EXPECT_EQ(wake_up_.OnSleep(0, 500), 500);
  wake_up_.Wake();
  EXPECT_TRUE(called());  // which ends the caller's sleep, not the thread's
  wake_up_.OnAwake(/*readable=*/false);
  wake_up_.LeaveToNobody();
  EXPECT_TRUE(wake_up_.parked());
  wake_up_.WakeBy(INT64_MAX);  // nobody else would see to the timers
  EXPECT_FALSE(wake_up_.parked());
  EXPECT_FALSE(called());
  lock.unlock();
  thread.join();
}

}  // namespace
}  // namespace passing
