// XLA learns of a failure as a number, and then asks for its text.
#ifndef XLA_FFI_MPI_ERROR_CODES_H_
#define XLA_FFI_MPI_ERROR_CODES_H_

#include <array>
#include <cstddef>
#include <mutex>
#include <string>

#include "host/sums/sum.h"

namespace passing::mpi {

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

#endif  // XLA_FFI_MPI_ERROR_CODES_H_
