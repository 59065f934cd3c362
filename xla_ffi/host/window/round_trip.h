// Estimates how long a result takes, and so how long to wait for one. SlotWindow uses nothing else of it: another
// estimate is another class with these members.
#ifndef XLA_FFI_HOST_WINDOW_ROUND_TRIP_H_
#define XLA_FFI_HOST_WINDOW_ROUND_TRIP_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace passing {

// RFC 6298: one sample a round trip, else the variation would forget within one batch of packets; and bounds of our
// own. Loss is mostly found by overtaking: this is for the last chunks of a sum, and must wait for all ranks.
class RoundTrip {
 public:
  // A round trip includes the wait for stragglers, so a sample counts as no more than this.
  static constexpr int64_t kMaxRtoUs = 50'000;

  // Takes a sample from a chunk that was sent once: the result of one sent again doesn't tell which packet it answers.
  void Measure(int64_t sample_us, int64_t now_us) {
    if (now_us >= next_least_us_) {
      next_least_us_ = now_us + kLeastLastsUs;
      past_least_us_ = std::exchange(recent_least_us_, sample_us);
    }
    recent_least_us_ = std::min(recent_least_us_, sample_us);
    if (now_us < next_sample_us_) return;
    next_sample_us_ = now_us + sample_us;
    sample_us = std::min(sample_us, kMaxRtoUs);
    if (smoothed_us_ == 0) {
      smoothed_us_ = sample_us;
      variation_us_ = sample_us / 2;
    } else {
      variation_us_ += (std::abs(sample_us - smoothed_us_) - variation_us_) / 4;
      smoothed_us_ += (sample_us - smoothed_us_) / 8;
    }
    rto_us_ = std::clamp(2 * smoothed_us_ + 4 * variation_us_, kMinRtoUs, kMaxRtoUs);
  }

  int64_t smoothed_us() const { return smoothed_us_; }  // 0 before the first
  // The least sample of late: what a result takes when nothing is queued.
  int64_t least_us() const { return std::min(past_least_us_, recent_least_us_); }
  // A chunk that has waited so long is sent again.
  int64_t rto_us() const { return rto_us_; }

 private:
  static constexpr int64_t kFirstRtoUs = 10'000;  // before any round trip was measured
  static constexpr int64_t kMinRtoUs = 2'000;     // below it, the scheduling of a busy host looks like loss

  static constexpr int64_t kLeastLastsUs = 10'000'000;  // once or twice

  int64_t next_least_us_ = 0;
  int64_t recent_least_us_ = INT64_MAX;
  int64_t past_least_us_ = INT64_MAX;
  int64_t next_sample_us_ = 0;
  int64_t smoothed_us_ = 0;
  int64_t variation_us_ = 0;
  int64_t rto_us_ = kFirstRtoUs;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_WINDOW_ROUND_TRIP_H_
