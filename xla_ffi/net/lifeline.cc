#include "net/lifeline.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace passing {

Lifeline::Lifeline(int fd, std::chrono::microseconds period) : fd_(fd), period_(period) {
  // Else a line waits until the one before is acknowledged. A failure shows when a line is sent.
  const int one = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  try {
    thread_ = std::thread(&Lifeline::Run, this);
  } catch (...) {
    close(fd_);
    throw;
  }
}

Lifeline::~Lifeline() {
  if (getpid() != process_) {  // forked from the process whose thread and connection these are
    thread_.detach();
    close(fd_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_one();
  thread_.join();
  shutdown(fd_, SHUT_RDWR);  // a process that was forked may hold the socket, too
  close(fd_);
}

void Lifeline::Run() {
  pthread_setname_np(pthread_self(), "passing-alive");
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, period_, [this] { return is_over_; })) {
    // Never waits: where nothing gets through, what is queued says as much as one line more.
    if (send(fd_, "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN && errno != EINTR) return;
  }
}

}  // namespace passing
