// Puts whoever serves a transport to sleep, and lets callers end its sleep.
#ifndef XLA_FFI_HOST_TRANSPORT_WAKE_UP_H_
#define XLA_FFI_HOST_TRANSPORT_WAKE_UP_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <utility>

namespace passing {

// The transport's thread serves it: does what callers left, sends, receives. While nothing is to be done it may park:
// then nobody serves, until a caller does for the time of its sum, or somebody wakes the thread. A caller makes a
// system call only if whoever serves sleeps.
//
// The thread and its callers share a lock, with which all but fd() is called.
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

  // Readable once whoever serves is to wake up.
  int fd() const { return fd_; }

  // The thread wakes once more, this long after the last result. A caller that sends the next sum before that needn't
  // wake it to set its timers, which are due later: no RTO is shorter.
  static constexpr int64_t kLingerUs = 2'000;

  // Called when whoever serves is about to sleep and has something to do at `due_us`, or never (INT64_MAX). Returns the
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

  // The thread parks. Returns when it is to serve again. `lock` is the shared one.
  void Park(std::unique_lock<std::mutex>& lock) {
    server_ = kNobody;
    unparked_.wait(lock, [this] { return server_ == kThread; });
  }
  bool parked() const { return server_ == kNobody; }
  // A caller serves, as the thread is parked.
  void ServeByCaller() { server_ = kCaller; }
  // It has nothing more to do.
  void LeaveToNobody() { server_ = kNobody; }
  // It has more to do than it will.
  void LeaveToThread() {
    server_ = kThread;
    unparked_.notify_one();
  }

  // Callers. Somebody sleeps; whoever is awake looks at what they left before it sleeps, or parks.
  bool asleep() const { return asleep_ || parked(); }
  void Wake() {
    if (parked()) return LeaveToThread();
    if (!asleep_ || std::exchange(called_, true)) return;
    const uint64_t one = 1;
    while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
  // Wakes the thread unless it wakes by then anyway.
  void WakeBy(int64_t due_us) {
    if (parked() || due_us < until_us_) Wake();
  }

 private:
  int fd_;
  enum { kThread, kCaller, kNobody } server_ = kThread;
  std::condition_variable unparked_;  // server_
  bool asleep_ = false;               // whoever serves is, or is about to be
  bool called_ = false;               // fd_ is readable
  bool lingered_ = false;             // since there was something to do
  int64_t until_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_WAKE_UP_H_
