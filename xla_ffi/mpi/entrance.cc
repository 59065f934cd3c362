#include "mpi/entrance.h"

#include <chrono>

#include "mpi/failures.h"

namespace passing::mpi {

Entrance::Visit::Visit(Entrance& entrance) : entrance_(entrance) {
  const std::lock_guard lock(entrance.mutex_);
  if (entrance.closed_) throw Failed("ClosedError", "Python is ending, so JAX's collectives are over.");
  ++entrance.inside_;
}

Entrance::Visit::~Visit() {
  const std::lock_guard lock(entrance_.mutex_);
  if (--entrance_.inside_ == 0) entrance_.left_.notify_all();
}

bool Entrance::Close(double timeout_s) {
  std::unique_lock lock(mutex_);
  closed_ = true;
  return left_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return inside_ == 0; });
}

}  // namespace passing::mpi
