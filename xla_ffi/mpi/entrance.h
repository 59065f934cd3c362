// Lets XLA's threads into Python, until it ends.
//
// A thread that is in Python, or asks for it, when Python begins to end is ended there, by unwinding its stack: through
// code that may not be unwound, so that the process is killed.
#ifndef XLA_FFI_MPI_ENTRANCE_H_
#define XLA_FFI_MPI_ENTRANCE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "mpi/failures.h"

namespace passing::mpi {

class Entrance {
 public:
  // The owner of one is in. It is taken without the GIL.
  class Visit {
   public:
    // Throws Failed if the entrance is closed.
    explicit Visit(Entrance& entrance) : entrance_(entrance) {
      const std::lock_guard lock(entrance.mutex_);
      if (entrance.closed_) throw Failed("ClosedError", "Python is ending, so JAX's collectives are over.");
      ++entrance.inside_;
    }
    ~Visit() {
      const std::lock_guard lock(entrance_.mutex_);
      if (--entrance_.inside_ == 0) entrance_.left_.notify_all();
    }
    Visit(const Visit&) = delete;

   private:
    Entrance& entrance_;
  };

  // Nobody comes in any more. Returns whether all are out, after timeout_s at most.
  bool Close(double timeout_s) {
    std::unique_lock lock(mutex_);
    closed_ = true;
    return left_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return inside_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  bool closed_ = false;
  uint32_t inside_ = 0;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_ENTRANCE_H_
