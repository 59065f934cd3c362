// Lets XLA's threads into Python, until it ends.
//
// A thread that is in Python, or asks for it, when Python begins to end is ended there, by unwinding its stack: through
// code that may not be unwound, so that the process is killed.
#ifndef XLA_FFI_MPI_ENTRANCE_H_
#define XLA_FFI_MPI_ENTRANCE_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace passing::mpi {

class Entrance {
 public:
  // Whoever has one is in. It is taken without the GIL.
  class Visit {
   public:
    // Throws Failed if the entrance is closed.
    explicit Visit(Entrance& entrance);
    ~Visit();
    Visit(const Visit&) = delete;

   private:
    Entrance& entrance_;
  };

  // Nobody comes in any more. Returns whether all are out, after timeout_s at most.
  bool Close(double timeout_s);

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  bool closed_ = false;
  uint32_t inside_ = 0;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_ENTRANCE_H_
