#include "mpi/message.h"

namespace passing::mpi {

void Message::Done(std::optional<Failure> failure) {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    failure_ = std::move(failure);
    done_ = true;
    changed_.notify_all();
  }
  if (when_done_) when_done_(failure_);
}

void Message::Drop() { Done(Failure{"PassingError", "A message was dropped before it was done."}); }

bool Message::Wait(double timeout_s) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return done_; });
}

}  // namespace passing::mpi
