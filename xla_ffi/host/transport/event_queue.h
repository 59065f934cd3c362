// The queue in which the events of a rank wait for its session's thread (Python).
#ifndef XLA_FFI_HOST_TRANSPORT_EVENT_QUEUE_H_
#define XLA_FFI_HOST_TRANSPORT_EVENT_QUEUE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "host/rank_core.h"

namespace passing {

// From any thread.
class EventQueue {
 public:
  // A Stalled replaces an earlier one that nobody has taken: a session that doesn't listen needs only one.
  void Push(RankEvent event) {
    std::lock_guard lock(mutex_);
    const auto is_stalled = [](const RankEvent& one) { return std::holds_alternative<Stalled>(one); };
    if (is_stalled(event)) std::erase_if(events_, is_stalled);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  // The next event; empty after timeout_us, or once the queue is closed and has no more.
  std::optional<RankEvent> Wait(int64_t timeout_us) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return !events_.empty() || closed_; });
    if (events_.empty()) return std::nullopt;
    RankEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RankEvent> events_;
  bool closed_ = false;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_EVENT_QUEUE_H_
