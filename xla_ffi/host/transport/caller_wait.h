// Decides whether the caller of a small sum waits for its packets itself, and how.
#ifndef XLA_FFI_HOST_TRANSPORT_CALLER_WAIT_H_
#define XLA_FFI_HOST_TRANSPORT_CALLER_WAIT_H_

#include <algorithm>
#include <cstdint>

namespace passing {

// Goes on with something as long as it succeeds more often than not. Else it is left out ever more often.
class Tries {
 public:
  // Is it to be tried now? To be asked each time.
  bool Next() {
    if (left_out_ == 0) return true;
    --left_out_;
    return false;
  }
  bool is_next() const { return left_out_ == 0; }
  void OnSuccess() { pause_ /= 2; }
  void OnFailure() { left_out_ = pause_ = std::clamp<uint32_t>(2 * pause_, 1, kMaxPause); }
  // It cost as much as a thousand successes win.
  void OnDisaster() { left_out_ = kDisasterPause; }

 private:
  static constexpr uint32_t kMaxPause = 256, kDisasterPause = 2048;

  uint32_t pause_ = 0;     // after the last failure
  uint32_t left_out_ = 0;  // from now on
};

// Each hand-over of a sum to another thread costs a wake-up, which takes longer than all else that a host does for a
// small sum. So the thread that starts one sends its packets and receives its results, too, if these come soon. It
// looks for them again and again for a short time, and yields its core each time; then it sleeps until they come.
// Hosts may be late (they compute, or another program has their cores): then the transport's thread takes over, and
// goes on with the next sums as well.
class CallerWait {
 public:
  // About what two wake-ups take: whoever looks for so long loses no more than it might have won.
  static constexpr int64_t kLookUs = 50;
  // A caller that could go on without its result is held up by no more than this.
  static constexpr int64_t kWaitUs = 1'000;
  // Whoever yields gets its core back at once, or when a peer on it has done its part. If it takes longer, others have
  // work for the core, and each of them may get it for milliseconds.
  static constexpr int64_t kYieldUs = 200;

  // `cores`: how many this process may use. Looking for results on the only one keeps the peers from sending them.
  explicit CallerWait(unsigned cores) : may_look_(cores > 1) {}

  // A small sum starts while no other is pending; its caller wants nothing else. Returns whether the caller waits.
  bool OnStart(int64_t now_us) {
    wanted_ = true;
    if (!waits_.Next()) return false;
    until_us_ = now_us + kWaitUs;
    look_until_us_ = may_look_ && looks_.Next() ? now_us + kLookUs : 0;
    looked_ = look_until_us_ > 0;
    return true;
  }
  // A small sum starts whose caller has other things to do.
  void OnOther() { wanted_ = false; }

  // While it waits: is it to look for results, or to sleep until they come?
  bool looks(int64_t now_us) const { return now_us < look_until_us_; }
  // It yielded for so long.
  void OnYield(int64_t took_us) {
    if (took_us <= kYieldUs) return;
    looks_.OnDisaster();
    look_until_us_ = 0;
    looked_ = false;
  }
  // Until when it sleeps at most.
  int64_t until_us() const { return until_us_; }

  // The sum is done.
  void OnDone(int64_t now_us) {
    waits_.OnSuccess();
    if (looked_) looks(now_us) ? looks_.OnSuccess() : looks_.OnFailure();
  }
  // The transport's thread takes over: it is too late, or there is more to do.
  void OnGivenUp() {
    waits_.OnFailure();
    if (looked_) looks_.OnFailure();
  }

  // Will the next caller wait, as far as is known? Then the transport's thread needn't listen until then.
  bool is_next() const { return wanted_ && waits_.is_next(); }

 private:
  const bool may_look_;
  bool wanted_ = false;
  Tries waits_;
  Tries looks_;
  bool looked_ = false;  // and it isn't known yet whether that was good
  int64_t look_until_us_ = 0;
  int64_t until_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_CALLER_WAIT_H_
