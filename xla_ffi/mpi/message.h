// A message carries bytes from one device to another.
#ifndef XLA_FFI_MPI_MESSAGE_H_
#define XLA_FFI_MPI_MESSAGE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "host/huge_pages.h"
#include "host/sums/sum.h"

namespace passing::mpi {

class Message {
 public:
  // It owns its bytes, so that a failed call may return while a channel still writes to them.
  explicit Message(size_t bytes) : owned_(NewMemory<uint8_t>(bytes)), bytes_(owned_.get(), bytes) {}
  // The bytes are another's, who keeps them until `when_done` is called, once, from any thread.
  Message(std::span<uint8_t> bytes, std::function<void(const std::optional<Failure>&)> when_done)
      : bytes_(bytes), when_done_(std::move(when_done)) {}
  Message(const Message&) = delete;
  ~Message() { Drop(); }

  std::span<uint8_t> bytes() const { return bytes_; }  // the channel's until it is done
  // The first call counts.
  void Done(std::optional<Failure> failure) {
    {
      const std::lock_guard lock(mutex_);
      if (done_) return;
      failure_ = std::move(failure);
      done_ = true;
      changed_.notify_all();
    }
    if (when_done_) when_done_(failure_);
  }
  // Fails it unless it is done: nobody will finish it.
  void Drop() { Done(Failure{"PassingError", "A message was dropped before it was done."}); }
  // Returns false after timeout_s.
  bool Wait(double timeout_s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return done_; });
  }
  // Once done.
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  const std::unique_ptr<uint8_t[]> owned_;
  const std::span<uint8_t> bytes_;
  const std::function<void(const std::optional<Failure>&)> when_done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::optional<Failure> failure_;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_MESSAGE_H_
