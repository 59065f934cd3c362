#include "ffi/gathering/completion_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace passing {

namespace {

// How often the system is asked for a thread that it didn't give.
constexpr auto kRetryInterval = std::chrono::milliseconds(20);

}  // namespace

CompletionPool::CompletionPool(size_t thread_limit, int64_t idle_us, MakeThread make_thread)
    : thread_limit_(thread_limit),
      idle_us_(idle_us),
      make_thread_(std::move(make_thread)),
      keeper_(&CompletionPool::Keep, this) {}

CompletionPool::~CompletionPool() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  wake_.notify_all();
  ended_.wait(lock, [this] { return tasks_.empty() && thread_count_ == 0; });
  ended_all_ = true;
  wake_keeper_.notify_all();
  lock.unlock();
  keeper_.join();
  while (waking_count_ > 0) std::this_thread::yield();  // what they woke was done by others meanwhile
}

void CompletionPool::MakeDetached(std::function<void()> run) { std::thread(std::move(run)).detach(); }

CompletionPool& CompletionPool::Get() {
  static auto& pool = *new CompletionPool();
  return pool;
}

void CompletionPool::Run(std::function<void()> task) {
  std::vector<std::function<void()>> tasks;
  tasks.push_back(std::move(task));
  Run(std::move(tasks));
}

void CompletionPool::Run(std::vector<std::function<void()>> tasks) {
  std::unique_lock lock(mutex_);
  size_t woken = 0;
  for (auto& task : tasks) {
    tasks_.push_back(std::move(task));
    if (tasks_.size() <= idle_count_) {
      ++woken;
    } else if (thread_count_ < thread_limit_ && !Grow() && missing_count_++ == 0) {
      wake_keeper_.notify_all();
    }
  }
  if (woken == 0) return;
  ++waking_count_;
  lock.unlock();  // or a worker would wake only to wait for it
  for (; woken > 0; --woken) wake_.notify_one();
  --waking_count_;
}

bool CompletionPool::Grow() {
  ++thread_count_;
  try {
    make_thread_([this] { Work(); });
    return true;
  } catch (const std::system_error&) {
    --thread_count_;
    return false;
  }
}

void CompletionPool::Keep() {
  std::unique_lock lock(mutex_);
  while (!ended_all_) {
    if (missing_count_ == 0) {
      wake_keeper_.wait(lock);
      continue;
    }
    wake_keeper_.wait_for(lock, kRetryInterval);
    missing_count_ = std::min(missing_count_, tasks_.size());  // workers took the other tasks meanwhile
    while (missing_count_ > 0 && thread_count_ < thread_limit_ && Grow()) --missing_count_;
    if (thread_count_ == thread_limit_) missing_count_ = 0;
  }
}

size_t CompletionPool::thread_count() const {
  std::lock_guard lock(mutex_);
  return thread_count_;
}

void CompletionPool::Work() {
  pthread_setname_np(pthread_self(), "passing-pool");  // else it has the name of the thread that made it
  std::unique_lock lock(mutex_);
  for (;;) {
    if (tasks_.empty()) {
      ++idle_count_;
      wake_.wait_for(lock, std::chrono::microseconds(idle_us_), [this] { return !tasks_.empty() || ending_; });
      --idle_count_;
      if (tasks_.empty()) break;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is freed without the lock
    lock.lock();
  }
  --thread_count_;
  // Under the lock: the pool may be gone as soon as it is released.
  ended_.notify_all();
}

}  // namespace passing
