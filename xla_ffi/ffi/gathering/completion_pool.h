// Threads on which XLA continues after a sum.
#ifndef XLA_FFI_FFI_GATHERING_COMPLETION_POOL_H_
#define XLA_FFI_FFI_GATHERING_COMPLETION_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace passing {

// Completing an FFI future runs the rest of that device's program on the completing thread, and that rest may block
// until other devices of the process come along (XLA's own collectives do). So a task never waits behind a busy
// worker: the pool grows by a thread for each task that finds nobody idle, up to `thread_limit`. Should the system have
// no more threads to give, the pool asks again until it has, or until the task was taken: the busy workers may all wait
// for what that very task would do. It has a thread for this from the start, as it may get none when it needs one.
class CompletionPool {
 public:
  // Runs its argument on a new thread, or throws std::system_error.
  using MakeThread = std::function<void(std::function<void()>)>;

  // More than the devices of any host, times the programs it may have in flight.
  static constexpr size_t kThreadLimit = 1024;
  // Long enough to keep the threads of a training loop, whose steps are shorter.
  static constexpr int64_t kIdleUs = 5'000'000;

  // Throws std::system_error.
  explicit CompletionPool(size_t thread_limit = kThreadLimit, int64_t idle_us = kIdleUs,
                          MakeThread make_thread = MakeDetached);
  ~CompletionPool();  // runs what is queued, waits for the workers

  // The process's pool. Never destroyed: a worker may be inside XLA when the process ends.
  static CompletionPool& Get();

  void Run(std::vector<std::function<void()>> tasks);
  void Run(std::function<void()> task);

  size_t thread_count() const;

 private:
  static void MakeDetached(std::function<void()> run);

  bool Grow();  // with the lock
  void Work();
  void Keep();

  const size_t thread_limit_;
  const int64_t idle_us_;
  const MakeThread make_thread_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> tasks_;
  size_t thread_count_ = 0;
  size_t idle_count_ = 0;                 // of these, how many wait for a task (or were woken for one just now)
  std::atomic<size_t> waking_count_ = 0;  // callers that are about to wake workers; they have let go of the lock
  size_t missing_count_ = 0;              // threads that queued tasks wait for and that couldn't be made
  bool ending_ = false;
  bool ended_all_ = false;

  std::condition_variable wake_keeper_;
  std::thread keeper_;  // makes the missing ones
};

}  // namespace passing

#endif  // XLA_FFI_FFI_GATHERING_COMPLETION_POOL_H_
