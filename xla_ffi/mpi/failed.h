// Calls fail inside of this room by throwing Failed. XLA gets an error code.
#ifndef XLA_FFI_MPI_FAILED_H_
#define XLA_FFI_MPI_FAILED_H_

#include <exception>
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

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_FAILED_H_
