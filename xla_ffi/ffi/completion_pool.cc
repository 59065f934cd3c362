#include "ffi/completion_pool.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace passing {

CompletionPool::CompletionPool(size_t thread_limit, int64_t idle_us) : thread_limit_(thread_limit), idle_us_(idle_us) {}

CompletionPool::~CompletionPool() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  wake_.notify_all();
  ended_.wait(lock, [this] { return thread_count_ == 0; });
}

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
  for (auto& task : tasks) {
    tasks_.push_back(std::move(task));
    if (tasks_.size() <= idle_count_) {
      wake_.notify_one();
    } else if (thread_count_ < thread_limit_) {
      ++thread_count_;
      try {
        std::thread(&CompletionPool::Work, this).detach();
      } catch (const std::system_error&) {
        // The system has no more threads to give: a busy worker takes the task when it is done.
        --thread_count_;
      }
    }
  }
}

size_t CompletionPool::thread_count() const {
  std::lock_guard lock(mutex_);
  return thread_count_;
}

void CompletionPool::Work() {
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
