// The requests of the transport to its session (Python), and the queue in which they wait for the session's thread.
#ifndef XLA_FFI_HOST_TRANSPORT_EVENT_QUEUE_H_
#define XLA_FFI_HOST_TRANSPORT_EVENT_QUEUE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "host/all_reduce.h"
#include "host/sums/sum.h"

namespace passing {

// Asks to relay the message to all other ranks.
struct OrderMessage {
  std::string bytes;
};

// Asks to warn, and to ask the switch who is missing.
struct Stalled {
  Stall stall;
  double stalled_s = 0;
};

// Tells, once for each shard, that its results no longer arrive by multicast: the shard must send each rank its own.
struct GroupLost {
  uint32_t shard = 0;
};

// A ProgramInfo asks to compare the program with those of the other ranks. A Failure comes once and asks to tell the
// switch, whoever called Fail.
using TransportEvent = std::variant<OrderMessage, ProgramInfo, Stalled, GroupLost, Failure>;

// From any thread.
class EventQueue {
 public:
  void Push(TransportEvent event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  // Replaces an earlier Stalled that nobody has taken: a session that doesn't listen needs only one.
  void PushLatest(Stalled stalled) {
    std::lock_guard lock(mutex_);
    std::erase_if(events_, [](const TransportEvent& event) { return std::holds_alternative<Stalled>(event); });
    events_.push_back(std::move(stalled));
    changed_.notify_all();
  }

  // The next event; empty after timeout_us, or once the queue is closed and has no more.
  std::optional<TransportEvent> Wait(int64_t timeout_us) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return !events_.empty() || closed_; });
    if (events_.empty()) return std::nullopt;
    TransportEvent event = std::move(events_.front());
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
  std::deque<TransportEvent> events_;
  bool closed_ = false;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_EVENT_QUEUE_H_
