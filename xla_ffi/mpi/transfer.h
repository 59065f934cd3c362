// Bytes on their way from one device to another.
#ifndef XLA_FFI_MPI_TRANSFER_H_
#define XLA_FFI_MPI_TRANSFER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "host/sums/sum.h"

namespace passing::mpi {

// It owns the bytes, so that a failed call may return while a channel still writes to them.
class Transfer {
 public:
  explicit Transfer(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}

  std::vector<uint8_t>& bytes() { return bytes_; }  // the channel's until it is done
  // The first call counts.
  void Done(std::optional<Failure> failure);
  // Returns false after timeout_s.
  bool Wait(double timeout_s);
  // Once done.
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  std::vector<uint8_t> bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::optional<Failure> failure_;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_TRANSFER_H_
