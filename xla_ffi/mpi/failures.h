// Calls fail inside of this room by throwing Failed. XLA learns of it as a number, and then asks for its text.
#ifndef XLA_FFI_MPI_FAILURES_H_
#define XLA_FFI_MPI_FAILURES_H_

#include <array>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "host/sums/sum.h"

namespace passing::mpi {

class Failed : public std::exception {
 public:
  Failed(std::string kind, std::string message) : failure_{std::move(kind), std::move(message)} {}
  explicit Failed(Failure failure) : failure_(std::move(failure)) {}
  const Failure& failure() const { return failure_; }
  const char* what() const noexcept override { return failure_.message.c_str(); }

 private:
  Failure failure_;
};

// The std::exception that is being handled, as a failure. `what` threw it.
//
// Nothing else is caught in this room: Python may end a thread that comes too late by unwinding its stack, which must
// go on.
Failure CurrentFailure(const std::string& what);

class ErrorCodes {
 public:
  static constexpr int kFirst = 1000;
  static constexpr size_t kMaxTextBytes = 1023;  // MPI_MAX_ERROR_STRING without the zero at its end

  // The same failure has the same code as long as its text is kept.
  int CodeOf(const Failure& failure);
  std::string TextOf(int code) const;

 private:
  static constexpr size_t kKept = 256;

  mutable std::mutex mutex_;
  std::array<std::string, kKept> texts_;
  int next_ = kFirst;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_FAILURES_H_
