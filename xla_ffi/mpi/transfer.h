// Bytes on their way from one device to another.
#ifndef XLA_FFI_MPI_TRANSFER_H_
#define XLA_FFI_MPI_TRANSFER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "host/sums/sum.h"

namespace passing::mpi {

class Transfer {
 public:
  // It owns the bytes, so that a failed call may return while a channel still writes to them.
  explicit Transfer(std::vector<uint8_t> bytes) : owned_(std::move(bytes)), bytes_(owned_) {}
  // The bytes are another's, who keeps them until `when_done` is called, once, from any thread.
  Transfer(std::span<uint8_t> bytes, std::function<void(const std::optional<Failure>&)> when_done)
      : bytes_(bytes), when_done_(std::move(when_done)) {}
  Transfer(const Transfer&) = delete;
  ~Transfer() { Done(Failure{"PassingError", "A transfer was dropped before it was done."}); }

  std::span<uint8_t> bytes() const { return bytes_; }  // the channel's until it is done
  // The first call counts.
  void Done(std::optional<Failure> failure);
  // Returns false after timeout_s.
  bool Wait(double timeout_s);
  // Once done.
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  std::vector<uint8_t> owned_;
  const std::span<uint8_t> bytes_;
  const std::function<void(const std::optional<Failure>&)> when_done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::optional<Failure> failure_;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_TRANSFER_H_
