// Says over a connection that this process lives.
#ifndef XLA_FFI_NET_LIFELINE_H_
#define XLA_FFI_NET_LIFELINE_H_

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace passing {

// A thread sends an empty line every period until the connection ends. It takes no lock of Python's, so what holds that
// one for long doesn't make this process look dead; if the process is stopped, or its network cut, it falls silent.
class Lifeline {
 public:
  // Takes a connected TCP socket, which it closes at its end. Throws std::system_error.
  Lifeline(int fd, std::chrono::microseconds period);
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline();

 private:
  void Run();

  const int fd_;
  const std::chrono::microseconds period_;
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;
  std::thread thread_;  // last, as it uses the others
};

}  // namespace passing

#endif  // XLA_FFI_NET_LIFELINE_H_
