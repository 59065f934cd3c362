// Puts the transport's thread to sleep, and lets callers end its sleep.
#ifndef XLA_FFI_HOST_TRANSPORT_WAKE_UP_H_
#define XLA_FFI_HOST_TRANSPORT_WAKE_UP_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace passing {

// The thread and its callers share a lock, with which all but fd() is called. A caller makes a system call only if the
// thread sleeps.
class WakeUp {
 public:
  WakeUp() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;
  ~WakeUp() { Close(); }
  // The thread has ended: it never sleeps again.
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

  // Readable once the thread is to wake up.
  int fd() const { return fd_; }

  // The thread wakes once more, this long after the last result. A caller that sends the next sum before that needn't
  // wake it to set its timers, which are due later: no RTO is shorter.
  static constexpr int64_t kLingerUs = 2'000;

  // Called when the thread is about to sleep and has something to do at `due_us`, or never (INT64_MAX). Returns the
  // time until which it sleeps.
  int64_t OnSleep(int64_t now_us, int64_t due_us) {
    asleep_ = true;
    if (due_us != INT64_MAX) {
      lingered_ = false;
    } else if (!std::exchange(lingered_, true)) {
      due_us = now_us + kLingerUs;
    }
    return until_us_ = due_us;
  }
  // `readable`: packets have come.
  void OnAwake(bool readable) {
    asleep_ = false;
    if (readable) lingered_ = false;
    if (!std::exchange(called_, false)) return;
    uint64_t count;
    while (read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }
  bool asleep() const { return asleep_; }

  // Callers. A thread that is awake looks at what they left before it sleeps.
  void Wake() {
    if (!asleep_ || std::exchange(called_, true)) return;
    const uint64_t one = 1;
    while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
  // Wakes the thread unless it wakes by then anyway.
  void WakeBy(int64_t due_us) {
    if (due_us < until_us_) Wake();
  }

 private:
  int fd_;
  bool asleep_ = false;    // the thread is, or is about to be
  bool called_ = false;    // fd_ is readable
  bool lingered_ = false;  // since there was something to do
  int64_t until_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_WAKE_UP_H_
