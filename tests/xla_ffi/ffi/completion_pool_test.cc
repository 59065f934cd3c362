#include "ffi/completion_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <thread>

namespace passing {
namespace {

using namespace std::chrono_literals;

TEST(CompletionPool, runsEveryTask) {
  std::atomic<int> count = 0;
  {
    CompletionPool pool;
    for (int i = 0; i < 1000; ++i) pool.Run([&] { ++count; });
  }
  EXPECT_EQ(count, 1000);
}

// What deadlocks on a single thread: four devices' programs that go on only together.
TEST(CompletionPool, tasksMayWaitForEachOther) {
  CompletionPool pool;
  std::latch together(4);
  std::latch done(4);
  std::vector<std::function<void()>> tasks(4, [&] {
    together.arrive_and_wait();
    done.count_down();
  });
  pool.Run(tasks);
  done.wait();
  EXPECT_EQ(pool.thread_count(), 4);
}

TEST(CompletionPool, reusesIdleThreads) {
  CompletionPool pool;
  for (int i = 0; i < 100; ++i) {
    std::latch done(1);
    pool.Run([&] { done.count_down(); });
    done.wait();
  }
  // The next task may come before the worker is back.
  EXPECT_LE(pool.thread_count(), 10);
}

TEST(CompletionPool, shrinksWhenIdle) {
  CompletionPool pool(8, 10'000);
  std::latch together(8);
  pool.Run(std::vector<std::function<void()>>(8, [&] { together.arrive_and_wait(); }));
  for (int i = 0; i < 500 && pool.thread_count() > 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(pool.thread_count(), 0);
  std::latch done(1);
  pool.Run([&] { done.count_down(); });
  done.wait();
}

TEST(CompletionPool, growsToTheLimitOnly) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  {
    CompletionPool pool(3);
    for (int i = 0; i < 30; ++i) {
      pool.Run([&] {
        const int now = ++running;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        // The first ones stay until the pool has grown, however busy the machine is.
        for (int waited_ms = 0; most < 3 && waited_ms < 10'000; ++waited_ms) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(1ms);  // a fourth one would be seen
        --running;
      });
    }
  }
  EXPECT_EQ(most, 3);
}

TEST(CompletionPool, tasksMayRunTasks) {
  std::atomic<int> count = 0;
  {
    CompletionPool pool(2);
    for (int i = 0; i < 10; ++i) {
      pool.Run([&] { pool.Run([&] { ++count; }); });
    }
    while (count < 10) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(count, 10);
}

}  // namespace
}  // namespace passing
