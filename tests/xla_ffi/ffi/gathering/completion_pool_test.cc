#include "ffi/gathering/completion_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <latch>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

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

// A single thread would deadlock here: four devices' programs go on only together.
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

// Threads that the system gives only when the test says so.
class ScarceThreads {
 public:
  void Allow(int count) { allowed_ += count; }
  int refused() const { return refused_; }
  CompletionPool::MakeThread Maker() {
    return [this](std::function<void()> run) {
      if (allowed_-- <= 0) {
        ++allowed_;
        ++refused_;
        throw std::system_error(EAGAIN, std::generic_category());
      }
      std::thread(std::move(run)).detach();
    };
  }

 private:
  std::atomic<int> allowed_ = 0;
  std::atomic<int> refused_ = 0;
};

TEST(CompletionPool, asksAgainForTheFirstThread) {
  ScarceThreads threads;
  CompletionPool pool(4, 5'000'000, threads.Maker());
  std::latch done(1);
  pool.Run([&] { done.count_down(); });
  while (threads.refused() < 3) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(done.try_wait());
  threads.Allow(1);
  done.wait();
}

// All workers are busy, with something that only the task without a thread ends.
TEST(CompletionPool, asksAgainWhileWorkersAreBusy) {
  ScarceThreads threads;
  threads.Allow(1);
  CompletionPool pool(4, 5'000'000, threads.Maker());
  std::latch together(2);
  std::latch done(2);
  pool.Run(std::vector<std::function<void()>>(2, [&] {
    together.arrive_and_wait();
    done.count_down();
  }));
  while (threads.refused() < 2) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(done.try_wait());
  threads.Allow(1);
  done.wait();
}

TEST(CompletionPool, asksNoMoreOnceABusyWorkerTookTheTask) {
  ScarceThreads threads;
  threads.Allow(1);
  std::atomic<int> count = 0;
  CompletionPool pool(4, 5'000'000, threads.Maker());
  for (int i = 0; i < 100; ++i) pool.Run([&] { ++count; });
  while (count < 100) std::this_thread::sleep_for(1ms);
  threads.Allow(3);
  std::latch done(1);
  pool.Run([&] { done.count_down(); });
  done.wait();
  EXPECT_LE(pool.thread_count(), 2);  // the one, and one more if it was on its way back
}

TEST(CompletionPool, endsOnlyOnceEveryTaskRan) {
  ScarceThreads threads;
  std::atomic<int> count = 0;
  std::thread later;
  {
    CompletionPool pool(4, 5'000'000, threads.Maker());
    for (int i = 0; i < 10; ++i) pool.Run([&] { ++count; });
    later = std::thread([&] {
      while (threads.refused() < 12) std::this_thread::sleep_for(1ms);
      threads.Allow(2);
    });
  }
  EXPECT_EQ(count, 10);
  later.join();
}

}  // namespace
}  // namespace passing
