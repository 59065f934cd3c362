// Decides when sums that make no progress are worth a warning, and when they are lost. No clock, no thread.
#ifndef XLA_FFI_HOST_STALL_WATCH_H_
#define XLA_FFI_HOST_STALL_WATCH_H_

#include <cstdint>

namespace passing {

// The deadline counts from the last progress of any sum, so that a long queue of large sums is no fault. Who asks much
// too late stood still (SIGSTOP, a paused machine), perhaps with all other hosts: it counts anew from then.
class StallWatch {
 public:
  struct Verdict {
    enum { kGoesOn, kStalled, kLost } state = kGoesOn;
    int64_t stalled_us = 0;  // for how long there was no progress, or the sum was passed by others
    bool is_new = false;     // the last warning was about another stall
  };

  StallWatch(int64_t warn_us, int64_t deadline_us) : warn_us_(warn_us), deadline_us_(deadline_us) {}

  // Is it time to ask Judge? `results`: the number of awaited results since the beginning. `idle`: no sum is pending.
  bool IsDue(uint64_t results, bool idle, int64_t now_us);
  // Judges by the pending sum that started first.
  Verdict Judge(int64_t started_us, int64_t now_us);
  // When IsDue may be true next; INT64_MAX if no sum is pending.
  int64_t next_timer_us() const { return next_us_; }

 private:
  const int64_t warn_us_;
  const int64_t deadline_us_;
  uint64_t results_ = 0;
  int64_t progress_us_ = 0;        // when the last of them came
  int64_t resumed_us_ = 0;         // when the process went on after it had stood still
  int64_t reported_since_us_ = 0;  // the stall that was reported last
  int64_t next_us_ = INT64_MAX;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_STALL_WATCH_H_
